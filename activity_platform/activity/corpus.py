"""The training corpus: each whole day of the log as one Parquet file, kept when its month is dropped.

    training/activity_events/dt=2026-09-30/events.parquet    the day's events, by user and time
    training/activity_events/dt=2026-09-30/_manifest.json    what the file holds; written last
    training/activity_events/dt=2026-09-30/_staged           a file on its way

Days are UTC. A day has one file, under one name: whoever reads `dt=*/*.parquet` sees each event once, also
while a day is replaced. Names that begin with `_` are passed over by readers of directories. A file counts
once the manifest describes it; `Corpus.intact` tells whether it still does.

Only what holds the turn (`writing`) changes the corpus: the export, and the rewriting that leaves somebody
out.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any, Protocol

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import errors

from activity_platform.activity.vocabulary import EDGE_RULES
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways import postgres
from activity_platform.gateways.object_store import ObjectMissing

PREFIX = "training/activity_events/"
FILE = "events.parquet"
MANIFEST = "_manifest.json"
STAGED = "_staged"
PARQUET = "application/vnd.apache.parquet"
MOST_MANIFEST_BYTES = 65_536

#: The columns in their order. `context` is its JSON text. `late` events came after the fold had passed their
#: stamp: no edge holds them.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("verb", pa.string(), nullable=False),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("object_id", pa.string(), nullable=False),
        pa.field("surface", pa.string()),
        pa.field("context", pa.string()),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("late", pa.bool_(), nullable=False),
    ]
)
#: A row group ends at so many rows, or earlier where contexts are large: one must fit into memory.
GROUP_ROWS = 100_000
GROUP_BYTES = 48 * 1024 * 1024

#: Verbs that an edge comes of.
FOLDABLE = pa.array([str(verb) for verb in EDGE_RULES])

#: Sums of ids are kept modulo this, the integers that every reader of JSON has exactly.
ID_SUMS = 2**53

#: One writer of the corpus at a time: the lock of its session. An arbitrary number of ours.
LOCK = "SELECT pg_advisory_lock(6301401882)"
UNLOCK = "SELECT pg_advisory_unlock(6301401882)"
TURN_PATIENCE = "10min"


class CorpusStorage(Protocol):
    """Where the files are. A write or a copy replaces the object as a whole."""

    def get(self, path: str, /, *, most_bytes: int) -> bytes: ...

    def get_file(self, path: str, file: IO[bytes], /) -> None: ...

    def put(self, path: str, data: bytes, /, *, content_type: str) -> None: ...

    def put_file(
        self, path: str, file: IO[bytes], /, *, content_type: str, metadata: dict[str, str]
    ) -> None: ...

    def copy(self, source: str, target: str, /, *, content_type: str, metadata: dict[str, str]) -> None: ...

    def find_metadata(self, path: str, /) -> dict[str, str] | None: ...

    def list_folders(self, prefix: str, /) -> Iterable[str]: ...

    def delete(self, path: str, /) -> None: ...


@dataclass(frozen=True)
class Log:
    """What the log holds of a day: rows, and the sum of their ids modulo 2^53. Ids only grow, so that no
    row can come, nor any be exchanged, without one of the two telling it."""

    rows: int
    ids: int


@dataclass(frozen=True)
class Content:
    """What a file holds. `late` of its rows are in no edge; `folded` are, each once."""

    rows: int
    verbs: dict[str, int]
    ids: int
    late: int
    folded: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Content):
    """The content of a day's file, and the `log` that it was last compared with."""

    day: date
    log: Log
    file: str = FILE


def path_of(day: date, name: str = FILE) -> str:
    """The key of a file of that day."""
    return f"{PREFIX}dt={day:%Y-%m-%d}/{name}"


@contextmanager
def writing(connection: psycopg.Connection) -> Iterator[None]:
    """Takes the turn to write, and waits for it; on a connection in autocommit, outside a transaction.

    What was read of the log before the turn began may be old: read it within. Raises `TransientFailure` when
    the turn does not come.
    """
    connection.execute("SELECT set_config('lock_timeout', %s, false)", [TURN_PATIENCE])
    try:
        connection.execute(LOCK)
    except errors.LockNotAvailable as error:
        raise TransientFailure(
            f"the training corpus was being written by another process for {TURN_PATIENCE}: try again, or see"
            " pg_locks for the advisory lock 6301401882"
        ) from error
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(UNLOCK)


def confirm(connection: psycopg.Connection) -> None:
    """Makes sure that the turn is still held; it ends with its connection. Raises `DatabaseAway`."""
    with postgres.outages_named():
        connection.execute("SELECT")


@dataclass(frozen=True)
class Corpus:
    """The files of the corpus, read and replaced a day at a time."""

    storage: CorpusStorage

    def days(self) -> list[date]:
        """The days that have any object, ascending; not each need have a manifest."""
        return sorted(day for name in self.storage.list_folders(f"{PREFIX}dt=") if (day := _day(name)))

    def manifest(self, day: date) -> Manifest | None:
        """What the day's file holds; None for a day that is not, or not wholly, exported."""
        try:
            data = self.storage.get(path_of(day, MANIFEST), most_bytes=MOST_MANIFEST_BYTES)
            return msgspec.json.decode(data, type=Manifest)
        except ObjectMissing:
            return None
        except msgspec.DecodeError as error:
            raise PermanentFailure(
                f"{path_of(day, MANIFEST)} is not a manifest: delete it, and the day is exported anew"
            ) from error

    def intact(self, manifest: Manifest) -> bool:
        """Whether the file is the one that the manifest describes, as its writer noted on it. A writer that
        was killed between the two leaves a newer file, whole in itself."""
        return self.storage.find_metadata(path_of(manifest.day)) == _marks(manifest)

    @contextmanager
    def open(self, day: date) -> Iterator[pq.ParquetFile]:
        """The day's file, from a temporary copy. Raises `ObjectMissing` when there is none."""
        with tempfile.TemporaryFile() as copy:
            self.storage.get_file(path_of(day), copy)
            copy.seek(0)
            try:
                file = pq.ParquetFile(copy)
            except pa.ArrowInvalid as error:
                raise PermanentFailure(
                    f"{path_of(day)} is not a Parquet file: restore it, or delete it and its manifest to have"
                    " exported what the log still holds"
                ) from error
            yield file

    def publish(self, file: IO[bytes], manifest: Manifest) -> None:
        """Makes the file the day's: staged, then in its place, then described. Needs the turn."""
        staged, final = path_of(manifest.day, STAGED), path_of(manifest.day)
        file.seek(0)
        self.storage.put_file(staged, file, content_type=PARQUET, metadata=_marks(manifest))
        self.storage.copy(staged, final, content_type=PARQUET, metadata=_marks(manifest))
        self.describe(manifest)
        self.unstage(manifest.day)

    def describe(self, manifest: Manifest) -> None:
        """Writes the manifest alone. Needs the turn."""
        data = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        self.storage.put(path_of(manifest.day, MANIFEST), data, content_type="application/json")

    def unstage(self, day: date) -> None:
        """Removes what a killed writer left on its way. Needs the turn."""
        self.storage.delete(path_of(day, STAGED))


def write_day(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> Content:
    """Writes batches of `SCHEMA` as they come, and counts them. Holds one row group in memory."""
    counts = _Counts()
    group: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as parquet:
        for batch in batches:
            counts.add(batch)
            group.append(batch)
            if _is_full(group):
                _write_group(parquet, group)
                group = []
        if group:
            _write_group(parquet, group)
    size = file.tell()
    file.seek(0)
    return Content(
        rows=counts.verbs.total(),
        verbs=dict(sorted(counts.verbs.items())),
        ids=counts.ids % ID_SUMS,
        late=counts.late,
        folded=counts.foldable - counts.late,
        bytes=size,
        sha256=hashlib.file_digest(file, "sha256").hexdigest(),  # type: ignore[arg-type]
    )


@dataclass
class _Counts:
    verbs: Counter[str] = field(default_factory=Counter)
    ids: int = 0
    late: int = 0
    foldable: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.verbs.update(
            {found["values"].as_py(): found["counts"].as_py() for found in batch["verb"].value_counts()}
        )
        self.ids += sum(batch["id"].to_pylist())
        self.late += batch["late"].true_count
        self.foldable += pc.is_in(batch["verb"], FOLDABLE).true_count


def _write_group(parquet: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches, SCHEMA)
    parquet.write_table(table, row_group_size=len(table))


def _is_full(batches: list[pa.RecordBatch]) -> bool:
    rows, size = sum(len(batch) for batch in batches), sum(batch.nbytes for batch in batches)
    return rows >= GROUP_ROWS or bool(size >= GROUP_BYTES)


def _marks(content: Content) -> dict[str, str]:
    return {"sha256": content.sha256, "rows": str(content.rows)}


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def manifest_of(day: date, content: Content, log: Log) -> Manifest:
    """The manifest of a file with that content."""
    values: dict[str, Any] = vars(content)
    return Manifest(**values, day=day, log=log)
