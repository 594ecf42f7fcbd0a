"""Users leave the training corpus: their events, and those done to them."""

from __future__ import annotations

import io
import threading
import time
from datetime import UTC, date, datetime

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activity_platform.activity import corpus
from activity_platform.activity.corpus import Corpus, Log, manifest_of, path_of, write_day
from activity_platform.activity.corpus_rewrite import rewrite_day
from activity_platform.gateways.object_store import ObjectMissing
from activity_platform_tests.activity.corpus_files import bucket_of_its_own

DAY = date(2026, 9, 14)
NOON = datetime(2026, 9, 14, 12, tzinfo=UTC)


@pytest.fixture
def files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return Corpus(bucket_of_its_own(environment, monkeypatch))


def _event(number: int, user: str, object_type: str = "event", object_id: str = "e1") -> dict[str, object]:
    values = (number, user, "save", object_type, object_id, None, '{"a": 1}', NOON, False)
    return dict(zip(corpus.SCHEMA.names, values, strict=True))


EVENTS = [
    _event(1, "ann"),
    _event(2, "bob"),
    _event(3, "bob", "user", "ann"),
    _event(4, "bob", "event", "ann"),
    _event(5, "cleo", "user", "bob"),
]


def _publish(files: Corpus, events: list[dict[str, object]] = EVENTS) -> None:
    file = io.BytesIO()
    content = write_day(file, pa.Table.from_pylist(events, corpus.SCHEMA).to_batches())
    files.publish(file, manifest_of(DAY, content, Log(content.rows, content.ids)))


def _ids(files: Corpus) -> list[int]:
    with files.open(DAY) as file:
        return [int(number) for number in file.read()["id"].to_pylist()]


def test_events_of_a_user_and_to_a_user_leave_and_the_manifest_says_so(
    files: Corpus, connection: psycopg.Connection
) -> None:
    _publish(files)

    done = rewrite_day(connection, files, DAY, ["ann"])

    assert (done.removed, done.written) == (2, True)
    assert _ids(files) == [2, 4, 5]  # an event whose id reads like the user's is not the user
    manifest = files.manifest(DAY)
    assert manifest is not None
    assert (manifest.rows, manifest.verbs, manifest.ids, manifest.folded) == (3, {"save": 3}, 11, 3)
    assert manifest.log == Log(3, 11)
    assert files.intact(manifest)


def test_a_day_without_them_is_left_as_it_is(files: Corpus, connection: psycopg.Connection) -> None:
    _publish(files)
    before = files.manifest(DAY)
    assert not rewrite_day(connection, files, DAY, ["nobody", "eve"]).written
    rewrite_day(connection, files, DAY, ["ann"])
    assert not rewrite_day(connection, files, DAY, ["ann"]).written
    assert files.manifest(DAY) != before


def test_a_rewriting_that_was_killed_before_its_manifest_is_finished_by_the_next(
    files: Corpus, connection: psycopg.Connection
) -> None:
    _publish(files)
    old = files.storage.get(path_of(DAY, corpus.MANIFEST), most_bytes=10**6)
    rewrite_day(connection, files, DAY, ["ann"])
    files.storage.put(path_of(DAY, corpus.MANIFEST), old, content_type="application/json")

    assert rewrite_day(connection, files, DAY, ["ann"]).written

    manifest = files.manifest(DAY)
    assert manifest is not None
    assert (manifest.rows, manifest.log) == (3, Log(3, 11))
    assert files.intact(manifest)


def test_what_a_killed_writer_left_goes_too(files: Corpus, connection: psycopg.Connection) -> None:
    _publish(files)
    files.storage.put(path_of(DAY, corpus.STAGED), b"ann", content_type="text/plain")
    files.storage.delete(path_of(DAY, corpus.MANIFEST))
    assert files.days() == [DAY]

    assert rewrite_day(connection, files, DAY, ["ann"]).removed == 2

    manifest = files.manifest(DAY)
    assert manifest is not None
    assert (_ids(files), manifest.log) == ([2, 4, 5], Log(3, 11))
    with pytest.raises(ObjectMissing):
        files.storage.get(path_of(DAY, corpus.STAGED), most_bytes=10**6)


def test_it_waits_for_whoever_writes_the_corpus(
    files: Corpus, connection: psycopg.Connection, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        ended: list[float] = []

        def rewrite() -> None:
            rewrite_day(other, files, DAY, ["ann"])
            ended.append(time.monotonic())

        with corpus.writing(connection):
            thread = threading.Thread(target=rewrite)
            thread.start()
            thread.join(0.5)
            _publish(files)
            published = time.monotonic()
        thread.join(20)
    assert ended
    assert ended[0] > published
    assert _ids(files) == [2, 4, 5]


def test_a_file_has_typed_columns_and_says_how_it_was_packed(files: Corpus) -> None:
    _publish(files)
    data = files.storage.get(path_of(DAY), most_bytes=10**6)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.schema_arrow.equals(corpus.SCHEMA)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
