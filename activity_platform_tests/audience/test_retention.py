"""What is old is forgotten, so much at a time; what an audience needs never is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from activity_platform.audience.retention import Forgotten, forget
from activity_platform.failures import TransientFailure
from activity_platform.gateways.object_store import ObjectMissing, ObjectStore, s3_client
from activity_platform.local.services import BUCKET, Stack

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def store(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return ObjectStore(s3_client(stack.environment["S3_ENDPOINT_URL"]), BUCKET)


def add_import(
    connection: psycopg.Connection,
    store: ObjectStore,
    audience: int,
    days: int,
    *,
    status: str = "done",
    result: bool = True,
) -> str:
    """An import that finished so many days ago; the name of its files."""
    name = f"retention/{audience}-{days}"
    finished = None if status == "running" else NOW - timedelta(days=days)
    for path in (f"{name}.csv", f"{name}-rejects.csv"):
        store.put(path, b"x", content_type="text/csv")
    connection.execute(
        "INSERT INTO audience_import (audience_id, command, queue, message_id, status, result_path,"
        " rejects_path, started_at, finished_at)"
        " VALUES (%s, 'update', 'update_audience', %s, %s, %s, %s, %s, %s)",
        [
            *(audience, name, status),
            *(f"{name}.csv" if result else None, f"{name}-rejects.csv"),
            *(NOW - timedelta(days=days), finished),
        ],
    )
    return name


def exists(store: ObjectStore, path: str) -> bool:
    try:
        store.get(path, most_bytes=10)
    except ObjectMissing:
        return False
    return True


def run(connection: psycopg.Connection, store: ObjectStore, *, most: int = 100) -> Forgotten:
    return forget(connection, store.delete, now=NOW, message_days=30, import_days=90, most=most)


def names(connection: psycopg.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT message_id FROM audience_import ORDER BY id")]


def test_old_imports_go_with_their_files_but_for_those_that_are_needed(
    connection: psycopg.Connection, store: ObjectStore
) -> None:
    connection.execute(
        "INSERT INTO audience (id, organization_id, line_oa_id, name, info) VALUES"
        """ (1, 1, 1, 'a', '{"filePath": "retention/1-200.csv"}'), (2, 1, 1, 'b', NULL)"""
    )
    gone = add_import(connection, store, 1, 300)
    named = add_import(connection, store, 1, 200)
    planned = add_import(connection, store, 1, 150)
    running = add_import(connection, store, 1, 140, status="running")
    failed = add_import(connection, store, 1, 120, status="failed", result=False)
    young = add_import(connection, store, 1, 89)
    newest = add_import(connection, store, 2, 400)
    connection.execute(
        "INSERT INTO audience_change SELECT id, 7, 'added' FROM audience_import WHERE message_id = %s",
        [planned],
    )

    assert run(connection, store) == Forgotten(0, 0, imports=2, files=3, more=False)

    assert names(connection) == [named, planned, running, young, newest]
    for name in (named, planned, running, young, newest):
        assert exists(store, f"{name}.csv")
        assert exists(store, f"{name}-rejects.csv")
    assert not exists(store, f"{gone}.csv")
    assert not exists(store, f"{gone}-rejects.csv")
    assert not exists(store, f"{failed}-rejects.csv")
    assert run(connection, store) == Forgotten(0, 0, 0, 0, more=False)


def test_a_storage_that_is_away_leaves_the_rows_for_the_next_time(
    connection: psycopg.Connection, store: ObjectStore
) -> None:
    for days in (300, 200, 100):
        add_import(connection, store, 1, days)
    deleted: list[str] = []

    def breaks(path: str) -> None:
        if len(deleted) == 3:
            raise TransientFailure("away")
        deleted.append(path)
        store.delete(path)

    with pytest.raises(TransientFailure):
        forget(connection, breaks, now=NOW, message_days=30, import_days=90, most=100)
    assert len(names(connection)) == 3
    assert run(connection, store).imports == 2
    assert names(connection) == ["retention/1-100"]


def test_messages_are_forgotten_after_their_days_so_many_at_a_time(
    connection: psycopg.Connection, store: ObjectStore
) -> None:
    connection.execute(
        """
        INSERT INTO processed_message
        SELECT 'create_audience', 'p' || day, %(now)s - day * interval '1 day'
        FROM generate_series(1, 60) AS day
        """,
        {"now": NOW},
    )
    connection.execute(
        """
        INSERT INTO message_attempt (queue, message_id, attempts, last_attempt_at, heartbeat_at)
        SELECT 'create_audience', 'a' || day, 1, %(now)s - day * interval '1 day',
               CASE WHEN day = 60 THEN %(now)s END
        FROM generate_series(1, 60) AS day
        """,
        {"now": NOW},
    )
    counts = []
    while True:
        forgotten = run(connection, store, most=20)
        counts.append((forgotten.processed_messages, forgotten.message_attempts))
        if not forgotten.more:
            break
    assert counts == [(20, 20), (10, 9)]
    assert connection.execute(
        "SELECT count(*), max(substr(message_id, 2)::int) FROM processed_message"
    ).fetchone() == (30, 30)
    beating = connection.execute("SELECT message_id FROM message_attempt WHERE heartbeat_at IS NOT NULL")
    assert beating.fetchall() == [("a60",)]
