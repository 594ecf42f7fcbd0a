"""What of an audit comes from the training corpus: days of which the log no longer has all events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from activity_platform.activity import audit_sql, corpus
from activity_platform.activity.audit_window import Filed, Window
from activity_platform.activity.corpus import Corpus, Log
from activity_platform.activity.corpus_export import count_days, midnight
from activity_platform.activity.vocabulary import EDGE_RULES

COLUMNS = ["user_id", "verb", "object_type", "object_id", "created_at", "late"]
READ_ROWS = 100_000
KEYS = ["user_id", "edge_type", "object_type", "object_id", "segment", "late"]
SUMS = [("weight", "count"), ("weight", "sum"), ("created_at", "min"), ("created_at", "max")]
EDGE_TYPES = pa.array([str(rule.edge_type) for rule in EDGE_RULES.values()])
WEIGHTS = pa.array([float(rule.weight) for rule in EDGE_RULES.values()])


def read_files(connection: psycopg.Connection, files: Corpus, window: Window) -> Filed:
    """Adds what files hold to the audit's edges, some rows in memory at a time. `leaving` is left empty."""
    days = tuple(_days(connection, files, window))
    folded: Counter[int] = Counter()
    late = 0
    for day in days:
        with files.open(day) as file, connection.cursor().copy(audit_sql.COPY_PARTS) as copy:
            for batch in file.iter_batches(READ_ROWS, columns=COLUMNS, use_threads=False):
                for part in _parts(batch, window):
                    copy.write_row(part)
                    segment, is_late, events = part[4:7]
                    late += events if is_late else 0
                    folded[segment] += 0 if is_late else events
    return Filed(days, folded, late)


def _days(connection: psycopg.Connection, files: Corpus, window: Window) -> Iterator[date]:
    first, last = (moment.astimezone(UTC).date() for moment in (window.since, window.watermark))
    logged = count_days(connection, midnight(first), midnight(last) + timedelta(days=1))
    for day in files.days():
        if first <= day <= last:
            manifest = files.manifest(day)
            if manifest and manifest.rows > logged.get(day, Log(0, 0)).rows:
                yield day


def _parts(batch: pa.RecordBatch, window: Window) -> Iterator[tuple[Any, ...]]:
    rule = pc.index_in(batch["verb"], corpus.FOLDABLE)
    events = pa.table(
        {
            **{name: batch[name] for name in COLUMNS if name != "verb"},
            "edge_type": EDGE_TYPES.take(rule),
            "weight": WEIGHTS.take(rule),
            "segment": _segments(batch["created_at"], window),
        }
    ).filter(pc.and_(pc.is_valid(rule), pc.greater(batch["created_at"], pa.scalar(window.since))))
    sums = events.group_by(KEYS, use_threads=False).aggregate(SUMS)
    names = [*KEYS, *(f"{column}_{function}" for column, function in SUMS)]
    return zip(*(sums[name].to_pylist() for name in names), strict=True)


def _segments(created_at: pa.Array, window: Window) -> pa.Array:
    """How many bounds lie before each of the times."""
    found = pa.repeat(pa.scalar(0), len(created_at))
    for bound in window.bounds:
        found = pc.add(found, pc.greater(created_at, pa.scalar(bound)).cast(pa.int64()))
    return found
