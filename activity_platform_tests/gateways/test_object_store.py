"""Objects over HTTP: whole or not at all, and every failure by name."""

from __future__ import annotations

import io
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways.object_store import (
    Location,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StorageUnavailable,
    s3_client,
)
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack

LARGE = 10**9


@pytest.fixture
def store(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return ObjectStore(s3_client(stack.environment["S3_ENDPOINT_URL"]), stack.environment["S3_BUCKET"])


@pytest.fixture
def folder() -> str:
    return secrets.token_hex(4)


@pytest.mark.parametrize("name", ["plain.csv", "ราย ชื่อ+1 (2).csv", "a%20b%2B", "q?x=1&y#z", "💙"])
def test_a_key_is_taken_literally(store: ObjectStore, folder: str, name: str) -> None:
    store.put(f"{folder}/{name}", name.encode(), content_type="text/csv")
    assert store.get(f"{folder}/{name}", most_bytes=LARGE) == name.encode()
    bucket = store.locate("x").bucket
    assert store.get(f"s3://{bucket}/{folder}/{name}", most_bytes=LARGE) == name.encode()


def test_a_location_may_name_another_bucket(store: ObjectStore) -> None:
    assert store.locate("s3://other/a/b c") == Location("other", "a/b c")


def test_a_write_replaces_the_object(store: ObjectStore, folder: str) -> None:
    for data in (b"first, and longer", b"second"):
        store.put(f"{folder}/x", data, content_type="text/csv")
    assert store.get(f"{folder}/x", most_bytes=LARGE) == b"second"


def test_a_copy_has_its_own_notes(store: ObjectStore, folder: str) -> None:
    store.put_file(f"{folder}/a +1", io.BytesIO(b"x" * 9_000_000), content_type="a/b", metadata={"rows": "1"})
    store.copy(f"{folder}/a +1", f"{folder}/b", content_type="a/b", metadata={"rows": "2"})
    copy = io.BytesIO()
    store.get_file(f"{folder}/b", copy)
    assert copy.getvalue() == b"x" * 9_000_000
    assert store.find_metadata(f"{folder}/b") == {"rows": "2"}
    with pytest.raises(ObjectMissing):
        store.get_file(f"{folder}/c", copy)


def test_folders_are_listed_once_each_and_objects_by_name(store: ObjectStore, folder: str) -> None:
    for name in ("dt=2/a", "dt=1/a", "dt=1/b", "dt=x", "other/a"):
        store.put(f"{folder}/{name}", b"", content_type="text/plain")
    assert list(store.list_folders(f"{folder}/dt=")) == ["1", "2"]
    assert list(store.list_keys(f"{folder}/dt=1")) == [f"{folder}/dt=1/a", f"{folder}/dt=1/b"]


def test_a_deleted_object_is_missing_and_may_be_deleted_again(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a+b %20", b"x", content_type="text/csv")
    for _ in range(2):
        store.delete(f"{folder}/a+b %20")
        with pytest.raises(ObjectMissing):
            store.get(f"{folder}/a+b %20", most_bytes=LARGE)


def test_an_object_up_to_the_limit_is_read_and_a_larger_one_is_not(store: ObjectStore, folder: str) -> None:
    data = b"x" * 3_000_000
    store.put(f"{folder}/x", data, content_type="text/csv")
    assert store.get(f"{folder}/x", most_bytes=len(data)) == data
    with pytest.raises(ObjectTooLarge, match="more than 2,999,999 bytes") as refused:
        store.get(f"{folder}/x", most_bytes=len(data) - 1)
    assert isinstance(refused.value, PermanentFailure)


@pytest.mark.parametrize("path", ["{}/x", "s3://no-such-bucket-{}/x", "s3://Not A Bucket!/{}"])
def test_what_is_not_there_is_missing(store: ObjectStore, folder: str, path: str) -> None:
    with pytest.raises(ObjectMissing) as missing:
        store.get(path.format(folder), most_bytes=LARGE)
    assert isinstance(missing.value, TransientFailure)
    assert folder not in str(missing.value)


def test_a_storage_that_is_away_is_unavailable(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    away = ObjectStore(s3_client(f"http://127.0.0.1:{free_port()}"), "bucket")
    with pytest.raises(StorageUnavailable, match="can't be reached"):
        away.get("x", most_bytes=LARGE)
    with pytest.raises(StorageUnavailable, match="can't be reached"):
        away.put("x", b"", content_type="text/csv")


@pytest.fixture
def cut_off() -> Iterator[str]:
    """A storage that promises ten bytes and hangs up after two."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 10\r\n\r\n12')

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_half_an_object_is_no_object(store: ObjectStore, cut_off: str) -> None:
    with pytest.raises(StorageUnavailable):
        ObjectStore(s3_client(cut_off), "bucket").get("x", most_bytes=LARGE)
