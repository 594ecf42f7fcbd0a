"""Leaving users out of the training corpus: a day's file is replaced by one without their events.

What names a user leaves: the events that they did, and those that others did to them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from activity_platform.activity import corpus
from activity_platform.activity.corpus import Content, Corpus, Log, Manifest
from activity_platform.activity.vocabulary import ObjectType
from activity_platform.gateways.object_store import ObjectMissing

READ_ROWS = 20_000


@dataclass(frozen=True)
class DayRewritten:
    """A day without those users: how many events of theirs its file held. `written` if it was replaced."""

    day: date
    removed: int
    written: bool


def rewrite_day(
    connection: psycopg.Connection, files: Corpus, day: date, users: Collection[str]
) -> DayRewritten:
    """Replaces the day's file and manifest by ones without the users, whole or not at all.

    An export that was under way has ended then, and one that begins later reads the log as it is. So whoever
    deletes the users' rows from the log, commits, lists the days within a turn (`corpus.writing`), and
    rewrites each, leaves no file with them. May be repeated. On a connection in autocommit. Raises
    `TransientFailure` when the turn or the storage is not to be had.
    """
    with corpus.writing(connection):
        files.unstage(day)
        try:
            return _rewrite(connection, files, day, users)
        except ObjectMissing:
            return DayRewritten(day, 0, written=False)


def _rewrite(
    connection: psycopg.Connection, files: Corpus, day: date, users: Collection[str]
) -> DayRewritten:
    manifest = files.manifest(day)
    with files.open(day) as old, tempfile.TemporaryFile() as file:
        content = corpus.write_day(file, _others(old, users))
        removed = old.metadata.num_rows - content.rows
        if not removed and manifest and files.intact(manifest):
            return DayRewritten(day, 0, written=False)
        corpus.confirm(connection)
        files.publish(file, corpus.manifest_of(day, content, _log_after(manifest, content)))
    return DayRewritten(day, removed, written=True)


def _log_after(manifest: Manifest | None, content: Content) -> Log:
    # The log loses the rows that the file loses, so that the export finds the day as it should be.
    if manifest is None:
        return Log(content.rows, content.ids)
    return Log(
        manifest.log.rows - (manifest.rows - content.rows),
        (manifest.log.ids - (manifest.ids - content.ids)) % corpus.ID_SUMS,
    )


def _others(file: pq.ParquetFile, users: Collection[str]) -> Iterator[pa.RecordBatch]:
    named = pa.array(sorted(users), pa.string())
    for batch in file.iter_batches(batch_size=READ_ROWS, use_threads=False):
        to_users = pc.equal(batch["object_type"], str(ObjectType.USER))
        names_one = pc.or_(
            pc.is_in(batch["user_id"], named), pc.and_(to_users, pc.is_in(batch["object_id"], named))
        )
        yield batch.filter(pc.invert(names_one))
