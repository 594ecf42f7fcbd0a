"""Maintaining the log's partitions on a real server, beside ingest, readers and what people leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from activity_platform.activity import partitions
from activity_platform.activity.partition_plan import Action, Partition
from activity_platform.activity.partitions import MaintenanceResult, read_catalog
from activity_platform.activity.rollup import fold
from activity_platform.failures import TransientFailure
from activity_platform_tests.activity.log_rows import add_event, set_watermark, weights

NOW = datetime(2026, 9, 15, tzinfo=UTC)


def maintain(database_url: str, now: datetime | None = NOW, **options: Any) -> MaintenanceResult:
    chosen = {"retention_days": 30, "ahead": 1, "patience_seconds": 0.0} | options
    return partitions.maintain(database_url, now=now, **chosen)


def months(connection: psycopg.Connection) -> list[str]:
    """The names of the log's partitions, without their common beginning."""
    return [part.name.removeprefix("activity_events_") for part in read_catalog(connection).partitions]


def rows(connection: psycopg.Connection, partition: str) -> int:
    ((count,),) = connection.execute(
        sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(f"activity_events_{partition}"))
    )
    return int(count)


def lines(result: MaintenanceResult, *actions: Action) -> list[tuple[str, str]]:
    return [
        (str(step.action), step.partition.removeprefix("activity_events_"))
        for step in result.steps
        if step.action in actions
    ]


@contextmanager
def ingest(database_url: str, *, a_second: int = 20) -> Iterator[list[float]]:
    """Single inserts at a steady rate from two sessions; yields how long each took."""
    stop = threading.Event()
    took: list[float] = []

    def insert() -> None:
        with psycopg.connect(database_url, autocommit=True) as own:
            while not stop.wait(2 / a_second):
                started = time.monotonic()
                add_event(own, "ingested")
                took.append(time.monotonic() - started)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(insert) for _ in range(2)]
        try:
            yield took
        finally:
            stop.set()
            for one in running:
                one.result()


def test_maintenance_twice_changes_nothing_the_second_time(
    database_url: str, connection: psycopg.Connection
) -> None:
    first = maintain(database_url, ahead=3)
    assert months(connection) == ["y2026m09", "y2026m10", "y2026m11", "y2026m12"]
    second = maintain(database_url, ahead=3)

    assert (first.created, first.failed, first.skipped) == (4, 0, 0)
    assert {step.action for step in second.steps} == {Action.KEEP}
    assert (second.created, second.moved_rows, second.dropped) == (0, 0, 0)


def test_a_dry_run_says_the_same_and_does_nothing(database_url: str, connection: psycopg.Connection) -> None:
    add_event(connection, at="2026-09-02Z", times=2)
    said = maintain(database_url, dry_run=True)
    assert months(connection) == []
    done = maintain(database_url)

    assert lines(said, *Action) == lines(done, *Action)
    assert lines(done, Action.CREATE, Action.MOVE) == [
        *(("create", "y2026m09"), ("move", "y2026m09"), ("create", "y2026m10"))
    ]


def test_without_a_time_the_databases_clock_counts(database_url: str, connection: psycopg.Connection) -> None:
    maintain(database_url, now=None)
    add_event(connection)
    assert rows(connection, "default") == 0


def test_rows_in_default_are_moved_into_their_new_months(  # S12
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, at="2026-10-01T00:00:00Z")
    add_event(connection, at="2026-09-30T23:59:59.999999Z", times=2)  # S14
    add_event(connection, at="2026-08-20Z", times=3)
    add_event(connection, at="2031-03-01Z", times=4)
    result = maintain(database_url)

    found = {name: rows(connection, name) for name in (*months(connection), "default")}
    assert found == {"y2026m08": 3, "y2026m09": 2, "y2026m10": 1, "y2031m03": 4, "default": 0}
    assert (result.moved_rows, result.failed) == (10, 0)


def test_new_rows_get_ids_after_a_move(database_url: str, connection: psycopg.Connection) -> None:
    add_event(connection, at="2026-09-20Z", times=3)
    maintain(database_url)
    add_event(connection, at="2026-09-21Z", times=2)
    ids = connection.execute("SELECT id FROM activity_events ORDER BY id").fetchall()
    assert ids == [(1,), (2,), (3,), (4,), (5,)]


def test_a_month_has_what_the_log_has(database_url: str, connection: psycopg.Connection) -> None:
    maintain(database_url)
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute("INSERT INTO activity_events (user_id, created_at) VALUES ('u1', '2026-09-02Z')")
    found = connection.execute(
        "SELECT am.amname, reloptions FROM pg_index JOIN pg_class ON oid = indexrelid"
        " JOIN pg_am AS am ON am.oid = relam WHERE indrelid = 'activity_events_y2026m09'::regclass"
    ).fetchall()
    assert found == [("brin", ["pages_per_range=32", "autosummarize=on"])]
    checks = connection.execute(
        "SELECT conname FROM pg_constraint"
        " WHERE conrelid = 'activity_events_y2026m09'::regclass AND contype = 'c'"
    ).fetchall()
    assert checks == []


def test_ingest_goes_on_while_a_full_default_is_moved(  # S12
    database_url: str, connection: psycopg.Connection
) -> None:
    """The current month is missing: all that is ingested meanwhile goes to DEFAULT, too."""
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " SELECT 'u', 'view', 'event', 'x', date_trunc('month', clock_timestamp(), 'UTC')"
        " FROM generate_series(1, 200000)"
    )
    with ingest(database_url, a_second=100) as took:
        time.sleep(0.3)
        result = maintain(database_url, now=None, patience_seconds=20)
        time.sleep(0.3)

    assert (result.failed, result.skipped) == (0, 0)
    assert rows(connection, "default") == 0
    ((held,),) = connection.execute("SELECT count(*) FROM activity_events")
    assert held == 200_000 + len(took)
    assert max(took) < 1


def test_a_month_is_dropped_once_it_is_old_and_folded(
    database_url: str, connection: psycopg.Connection
) -> None:
    maintain(database_url, now=datetime(2026, 1, 15, tzinfo=UTC), ahead=0)
    add_event(connection, at="2026-01-20Z", times=3)
    kept = maintain(database_url)
    assert (kept.dropped, kept.kept_unfolded) == (0, 1)
    fold(database_url, lag_seconds=0)
    result = maintain(database_url)

    (dropped,) = (step for step in result.steps if step.action is Action.DROP)
    assert (dropped.partition, dropped.rows) == ("activity_events_y2026m01", 3)
    assert "3 rows, " in dropped.reason
    assert "y2026m01" not in months(connection)
    assert weights(connection) == {"t1": 9}


def test_old_rows_of_default_are_deleted_once_they_are_folded(  # S20b
    database_url: str, connection: psycopg.Connection
) -> None:
    maintain(database_url)
    add_event(connection, "old", at=NOW - timedelta(days=45), times=3)
    fold(database_url, lag_seconds=0)
    result = maintain(database_url)

    assert (result.dropped, result.deleted_rows, rows(connection, "default")) == (0, 3, 0)
    assert months(connection) == ["y2026m09", "y2026m10"]
    assert weights(connection) == {"old": 9}


def test_old_rows_of_default_that_are_not_folded_are_moved(
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, "old", at=NOW - timedelta(days=145))
    result = maintain(database_url)

    assert (result.deleted_rows, result.moved_rows) == (0, 1)
    fold(database_url, lag_seconds=0)
    assert weights(connection) == {"old": 3}


def test_rows_of_no_calendar_stay_in_default_and_are_told(
    database_url: str, connection: psycopg.Connection
) -> None:
    for at in ("infinity", "-infinity", "4000-01-01 BC", "20000-01-01"):
        add_event(connection, at=at)
    result = maintain(database_url)

    assert rows(connection, "default") == 4
    assert any("4 rows have a time outside the calendar" in step.reason for step in result.steps)


def test_bounds_count_in_any_time_zone(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sql.Identifier(database_url.rpartition("/")[2])
    for setting in ("timezone = 'Asia/Kathmandu'", "datestyle = 'SQL, DMY'"):
        connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(name, sql.SQL(setting)))
    monkeypatch.setenv("PGTZ", "America/St_Johns")
    maintain(database_url)
    assert not maintain(database_url).created
    connection.execute("SET timezone = 'UTC'")
    ((bounds,),) = connection.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'activity_events_y2026m09'"
    )
    assert bounds == "FOR VALUES FROM ('2026-09-01 00:00:00+00') TO ('2026-10-01 00:00:00+00')"


def test_wide_misnamed_and_unbounded_partitions_are_read_by_their_bounds(
    database_url: str, connection: psycopg.Connection
) -> None:
    for name, lower, upper in (
        ("activity_events_past", "MINVALUE", "'2026-01-01Z'"),
        ("activity_events_y2026m12", "'2026-01-01Z'", "'2026-03-01Z'"),
        ("activity_events_part", "'2026-09-10Z'", "'2026-09-20Z'"),
        ("activity_events_rest", "'2026-11-01Z'", "MAXVALUE"),
    ):
        connection.execute(
            sql.SQL("CREATE TABLE {} PARTITION OF activity_events FOR VALUES FROM ({}) TO ({})").format(
                sql.Identifier(name), sql.SQL(lower), sql.SQL(upper)
            )
        )
    set_watermark(connection, "'2026-09-14Z'")
    result = maintain(database_url, ahead=6)

    assert lines(result, Action.CREATE, Action.DROP) == [
        ("create", "y2026m09"),
        ("create", "y2026m09_2"),
        ("create", "y2026m10"),
        ("drop", "past"),
        ("drop", "y2026m12"),
    ]
    assert months(connection) == ["y2026m09", "part", "y2026m09_2", "y2026m10", "rest"]
    assert not maintain(database_url, ahead=6).created


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE VIEW {} AS SELECT 1", "a view"),
        ("CREATE TABLE {} (LIKE activity_events)", "a table that is not attached"),
        (
            "CREATE TABLE other (at int) PARTITION BY RANGE (at);"
            "CREATE TABLE {} PARTITION OF other FOR VALUES FROM (1) TO (2)",
            "a partition of other",
        ),
        ("CREATE SEQUENCE {}", "a sequence"),
    ],
)
def test_a_name_that_is_taken_costs_the_month_its_name_only(
    database_url: str, connection: psycopg.Connection, statement: str, what: str
) -> None:
    name = "activity_events_y2026m09"
    connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
    result = maintain(database_url)

    assert (result.created, result.failed) == (2, 0)
    assert months(connection) == ["y2026m09_2", "y2026m10"]
    told = [step for step in result.steps if step.partition == name]
    assert [(step.action, step.reason) for step in told] == [
        (Action.KEEP, f"{what}, not a partition of activity_events: left alone")
    ]
    add_event(connection, at="2026-09-05Z")
    assert rows(connection, "default") == 0


def test_a_detached_month_keeps_its_rows(database_url: str, connection: psycopg.Connection) -> None:
    maintain(database_url, now=datetime(2026, 1, 15, tzinfo=UTC), ahead=0)
    add_event(connection, at="2026-01-20Z")
    connection.execute("ALTER TABLE activity_events DETACH PARTITION activity_events_y2026m01")
    set_watermark(connection, "'2026-09-14Z'")
    result = maintain(database_url)

    assert rows(connection, "y2026m01") == 1
    assert ("keep", "y2026m01") in lines(result, Action.KEEP)


def test_several_maintainers_at_once_have_one_outcome(
    database_url: str, connection: psycopg.Connection
) -> None:
    maintain(database_url, now=NOW - timedelta(days=90), ahead=0)
    add_event(connection, at="2026-09-02Z", times=5)
    set_watermark(connection, "'2026-09-14Z'")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: maintain(database_url, patience_seconds=20), range(4)))

    assert sum(result.created for result in results) == 2
    assert sum(result.moved_rows for result in results) == 5
    assert sum(result.dropped for result in results) == 1
    assert sum(result.failed + result.skipped for result in results) == 0
    assert months(connection) == ["y2026m09", "y2026m10"]


def test_a_failing_step_does_not_stop_the_others(database_url: str, connection: psycopg.Connection) -> None:
    maintain(database_url, now=datetime(2026, 1, 15, tzinfo=UTC))
    connection.execute("CREATE VIEW report AS SELECT * FROM activity_events_y2026m01")
    set_watermark(connection, "'2026-09-14Z'")
    result = maintain(database_url)

    assert (result.created, result.dropped, result.failed) == (2, 1, 1)
    (failed,) = (step for step in result.steps if step.failed)
    assert (failed.action, failed.partition) == (Action.SKIP, "activity_events_y2026m01")
    assert "other objects depend on it" in failed.reason
    assert months(connection) == ["y2026m01", "y2026m09", "y2026m10"]


def test_a_month_is_archived_before_it_is_dropped(database_url: str, connection: psycopg.Connection) -> None:
    maintain(database_url, now=datetime(2026, 1, 15, tzinfo=UTC))
    set_watermark(connection, "'2026-09-14Z'")
    assert maintain(database_url, archive_before_drop=True).dropped == 0
    asked: list[str] = []

    class Archive:
        def missing(self, partition: Partition) -> int:
            if partition.name.endswith("m02"):
                raise TransientFailure("the storage is away")
            return 1

        def store(self, partition: Partition) -> bool:
            asked.append(partition.name)
            return partition.name.endswith("m02")

    planned = maintain(database_url, archive_before_drop=True, archive=Archive(), dry_run=True)
    said = [step.reason.partition("first: ")[2] for step in planned.steps if step.action is Action.DROP]
    assert said == [
        "1 of its days are not in the training corpus",
        "the training corpus can't be looked at (the storage is away)",
    ]
    result = maintain(database_url, archive_before_drop=True, archive=Archive())

    assert asked == ["activity_events_y2026m01", "activity_events_y2026m02"]
    assert lines(result, Action.DROP) == [("drop", "y2026m02")]
    assert any("but not archived" in step.reason for step in result.steps)


def test_the_default_of_another_schema_and_odd_names_are_quoted(
    database_url: str, connection: psycopg.Connection
) -> None:
    connection.execute('CREATE SCHEMA "Odd ""schema"')
    connection.execute(
        'CREATE TABLE "Odd ""schema"."it\'s %s" PARTITION OF activity_events'
        " FOR VALUES FROM ('2026-01-01Z') TO ('2026-02-01Z')"
    )
    set_watermark(connection, "'2026-09-14Z'")
    result = maintain(database_url)
    assert lines(result, Action.DROP) == [("drop", "it's %s")]
    assert result.failed == 0
