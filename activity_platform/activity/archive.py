"""A month of the log as one Parquet file in the object storage, written before the month is dropped.

Its key names the month's bounds, not its table. The object's metadata holds the number of its rows, so that a
month that could not be dropped yet is not written again unless rows came to it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Protocol

import pandas as pd
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from activity_platform.activity.partition_plan import Partition
from activity_platform.gateways import postgres

ROWS_A_GROUP = 100_000
#: The columns in their order; context is its JSON text, ids and stamps are exact.
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user_id", pa.string()),
        ("verb", pa.string()),
        ("object_type", pa.string()),
        ("object_id", pa.string()),
        ("surface", pa.string()),
        ("context", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
# One sequential pass over the month's own table.
ROWS = "SELECT id, user_id, verb, object_type, object_id, surface, context::text, created_at FROM {month}"
COUNT = "SELECT count(*) FROM {month}"


class ArchiveStorage(Protocol):
    """Where archives go: a write replaces the object as a whole."""

    def put_file(
        self, path: str, file: IO[bytes], /, *, content_type: str, metadata: dict[str, str]
    ) -> None: ...

    def find_metadata(self, path: str, /) -> dict[str, str] | None: ...


@dataclass(frozen=True)
class MonthArchive:
    """Archives partitions of the log. Called with one, it returns whether all its rows are archived."""

    database_url: str
    storage: ArchiveStorage

    def __call__(self, partition: Partition) -> bool:
        path = path_of(partition)
        month = sql.Identifier(partition.schema, partition.name)
        with (
            postgres.outages_named(),
            postgres.connect(
                self.database_url, application_name="activity-platform archive", autocommit=False
            ) as connection,
        ):
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # count and rows agree
            ((rows,),) = connection.execute(sql.SQL(COUNT).format(month=month))
            if self.storage.find_metadata(path) == {"rows": str(rows)}:
                return True
            with tempfile.TemporaryFile() as file:
                written = _write(connection, month, file)
                file.seek(0)
                self.storage.put_file(
                    path,
                    file,
                    content_type="application/vnd.apache.parquet",
                    metadata={"rows": str(written)},
                )
        return written == int(rows)


def path_of(partition: Partition) -> str:
    """The key of a partition's archive."""
    return f"archive/activity_events/{_text(partition.lower)}--{_text(partition.upper)}.parquet"


def _text(bound: datetime | None) -> str:
    return "unbounded" if bound is None else f"{bound:%Y-%m-%dT%H:%M:%SZ}"


def _write(connection: psycopg.Connection, month: sql.Identifier, file: IO[bytes]) -> int:
    written = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for frame in _frames(connection, month):
            writer.write_table(pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False))
            written += len(frame)
    return written


def _frames(connection: psycopg.Connection, month: sql.Identifier) -> Iterator[pd.DataFrame]:
    with connection.cursor(name="archive") as cursor:
        cursor.itersize = ROWS_A_GROUP
        cursor.execute(sql.SQL(ROWS).format(month=month))
        while rows := cursor.fetchmany(ROWS_A_GROUP):
            yield pd.DataFrame(rows, columns=SCHEMA.names, dtype=object)


def read_archive(file: IO[bytes]) -> list[dict[str, Any]]:
    """The rows of an archive, contexts decoded. For a look at an old month, or to put it back."""
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return [row | {"context": row["context"] and json.loads(row["context"])} for row in rows]
