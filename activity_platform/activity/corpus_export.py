"""Writes whole days of the log into the training corpus, and again when rows came to them.

A day is written once all of it lies at or below the watermark. What a file holds stays in it, also when the
log no longer does; only `corpus_rewrite` takes events out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import IsolationLevel

from activity_platform.activity import corpus, corpus_sql, rollup_sql
from activity_platform.activity.corpus import Corpus, Log, Manifest
from activity_platform.activity.rollup import TICK, read_watermark
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways import postgres
from activity_platform.gateways.object_store import ObjectMissing

READ_ROWS = 5_000  # at a time, with contexts of up to 8 KiB each
CALENDAR = datetime(2, 1, 1, tzinfo=UTC)  # what is stamped earlier has no day
SESSION = {"timezone": "UTC", "datestyle": "ISO, YMD", "work_mem": "64MB", "jit": "off"}


@dataclass(frozen=True)
class DayExport:
    """A day as the corpus has it now, and whether its file was `written` for that."""

    day: date
    rows: int
    late: int
    bytes: int
    written: bool


@dataclass(frozen=True)
class ExportResult:
    """The days that were looked at, ascending."""

    days: tuple[DayExport, ...]

    @property
    def written(self) -> int:
        return sum(day.written for day in self.days)

    @property
    def unchanged(self) -> int:
        return len(self.days) - self.written

    @property
    def rows(self) -> int:
        """In the files that were written."""
        return sum(day.rows for day in self.days if day.written)


def export_days(
    database_url: str,
    files: Corpus,
    days: Collection[date] | None = None,
    *,
    tell: Callable[[DayExport], None] = lambda _: None,
) -> ExportResult:
    """Exports those days, or all whole days of the log; what is in the corpus as it is, is left alone.

    A day without events has no file. `tell` hears of each day as it is done. Raises `TransientFailure` for a
    day that is not wholly folded yet, and when database or storage are away.
    """
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name="activity-platform corpus") as connection,
    ):
        _prepare(connection)
        end = first_open_day(read_watermark(connection))
        if days is not None and any(day >= end for day in days):
            raise TransientFailure(
                f"{max(days)} is not wholly folded yet: days are exported up to {end - timedelta(days=1)}"
            )
        found = count_days(connection, *_span(days, end))
        done = []
        for day, log in found.items():
            if days is not None and day not in days:
                continue
            done.append(_export(connection, files, day, log))
            tell(done[-1])
    return ExportResult(tuple(done))


def first_open_day(watermark: datetime) -> date:
    """The first day, UTC, that is not wholly at or below the watermark."""
    return (watermark + TICK).astimezone(UTC).date()


def midnight(day: date) -> datetime:
    """The start of the day, UTC."""
    return datetime.combine(day, time(), UTC)


def count_days(
    connection: psycopg.Connection, start: datetime | None, end: datetime | None
) -> dict[date, Log]:
    """What the log holds of each day of `[start, end)` that has events, ascending; None is without end."""
    span = {"start": start or CALENDAR, "end": end or "infinity", "modulus": corpus.ID_SUMS}
    return {day: Log(rows, ids) for day, rows, ids in connection.execute(corpus_sql.COUNT_DAYS, span)}


def find_exported(files: Corpus, day: date, log: Log) -> Manifest | None:
    """The day's manifest, if the file is there and has every row that the log has of the day."""
    manifest = files.manifest(day)
    if manifest and (log.rows == 0 or manifest.log == log) and files.intact(manifest):
        return manifest
    return None


def _span(days: Collection[date] | None, end: date) -> tuple[datetime | None, datetime]:
    if days:
        return midnight(min(days)), midnight(max(days)) + timedelta(days=1)
    return None, midnight(end)


def _prepare(connection: psycopg.Connection) -> None:
    connection.read_only = False
    for name, value in SESSION.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])


def _export(connection: psycopg.Connection, files: Corpus, day: date, log: Log) -> DayExport:
    if exported := find_exported(files, day, log):
        return _as_is(exported)
    with corpus.writing(connection), tempfile.TemporaryFile() as file:
        manifest = files.manifest(day)
        connection.isolation_level = IsolationLevel.REPEATABLE_READ  # count and rows agree
        try:
            with connection.transaction():
                log = count_days(connection, midnight(day), midnight(day) + timedelta(days=1)).get(
                    day, Log(0, 0)
                )
                _find_exported(connection, files, day, manifest, log)
                content = corpus.write_day(file, _batches(connection, day))
        finally:
            connection.isolation_level = None
        return _publish(connection, files, file, manifest, corpus.manifest_of(day, content, log))


def _publish(
    connection: psycopg.Connection, files: Corpus, file: Any, before: Manifest | None, now: Manifest
) -> DayExport:
    corpus.confirm(connection)
    if not before and not now.rows:
        return _as_is(now)
    if before and before.sha256 == now.sha256 and files.intact(now):
        files.describe(now)
        return _as_is(now)
    files.publish(file, now)
    return DayExport(now.day, now.rows, now.late, now.bytes, written=True)


def _as_is(manifest: Manifest) -> DayExport:
    return DayExport(manifest.day, manifest.rows, manifest.late, manifest.bytes, written=False)


def _find_exported(
    connection: psycopg.Connection, files: Corpus, day: date, manifest: Manifest | None, log: Log
) -> None:
    """Fills the temporary tables: what an earlier file holds, and which events no edge does."""
    connection.execute(corpus_sql.CREATE_EXPORTED)
    connection.execute(corpus_sql.CREATE_LATE)
    bounds = {"start": midnight(day), "end": midnight(day) + timedelta(days=1), "name": rollup_sql.STATE}
    if _load_exported(connection, files, day):
        connection.execute(corpus_sql.FIND_LATER, bounds)
    elif manifest and log.rows < manifest.rows:
        raise PermanentFailure(
            f"the corpus' file of {day} is gone, and the log no longer holds all its events: restore the"
            " file, or delete its manifest to have exported what is left"
        )
    else:
        _find_late(connection, bounds)


def _load_exported(connection: psycopg.Connection, files: Corpus, day: date) -> bool:
    try:
        with files.open(day) as file, connection.cursor().copy(corpus_sql.COPY_EXPORTED) as copy:
            for batch in file.iter_batches(batch_size=READ_ROWS, use_threads=False):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)
    except ObjectMissing:
        return False
    connection.execute("ANALYZE exported")
    return True


def _find_late(connection: psycopg.Connection, bounds: dict[str, Any]) -> None:
    ((lower, upper, folded),) = connection.execute(corpus_sql.SPAN_OF_SLICES, bounds)
    window = bounds | {"lower": lower, "upper": upper, "most": None}
    ((foldable, _),) = connection.execute(rollup_sql.COUNT_FOLDABLE, window)
    if foldable > folded:
        connection.execute(corpus_sql.FIND_LATE, window)


def _batches(connection: psycopg.Connection, day: date) -> Iterator[pa.RecordBatch]:
    with connection.cursor(name="corpus") as cursor:
        cursor.execute(corpus_sql.DAY, {"start": midnight(day), "end": midnight(day) + timedelta(days=1)})
        while rows := cursor.fetchmany(READ_ROWS):
            yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = []
    for values, column in zip(zip(*rows, strict=True), corpus.SCHEMA, strict=True):
        plain = pa.int64() if pa.types.is_timestamp(column.type) else column.type
        arrays.append(pa.array(values, plain).cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=corpus.SCHEMA)
