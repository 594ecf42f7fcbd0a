"""What of an audit comes from the training corpus: days of which the log no longer has all events."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, timedelta

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

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
    counts: Counter[tuple[bool, int]] = Counter()
    for day in days:
        with files.open(day) as file, connection.cursor().copy(audit_sql.COPY_PARTS) as copy:
            for batch in file.iter_batches(READ_ROWS, columns=COLUMNS, use_threads=False):
                parts = _parts(batch, window)
                copy.write(_csv(parts))
                counts += _count(parts)
    folded = {segment: events for (late, segment), events in counts.items() if not late}
    return Filed(days, folded, late=counts.total() - sum(folded.values()))


def _days(connection: psycopg.Connection, files: Corpus, window: Window) -> Iterator[date]:
    first, last = (moment.astimezone(UTC).date() for moment in (window.since, window.watermark))
    logged = count_days(connection, midnight(first), midnight(last) + timedelta(days=1))
    for day in files.days():
        if first <= day <= last:
            manifest = files.manifest(day)
            if manifest and manifest.rows > logged.get(day, Log(0, 0)).rows:
                yield day


def _parts(batch: pa.RecordBatch, window: Window) -> pa.Table:
    """The batch's events by edge, segment and lateness; the columns of the audit's table."""
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
    return sums.select([*KEYS, *(f"{column}_{function}" for column, function in SUMS)])


def _csv(parts: pa.Table) -> bytes:
    data = io.BytesIO()
    csv.write_csv(parts, data, csv.WriteOptions(include_header=False))
    return data.getvalue()


def _count(parts: pa.Table) -> Counter[tuple[bool, int]]:
    sums = parts.group_by(["late", "segment"]).aggregate([("weight_count", "sum")])
    columns = (sums[name].to_pylist() for name in ("late", "segment", "weight_count_sum"))
    return Counter({(late, segment): events for late, segment, events in zip(*columns, strict=True)})


def _segments(created_at: pa.Array, window: Window) -> pa.Array:
    """How many bounds lie before each of the times."""
    found = pa.repeat(pa.scalar(0), len(created_at))
    for bound in window.bounds:
        found = pc.add(found, pc.greater(created_at, pa.scalar(bound)).cast(pa.int64()))
    return found
