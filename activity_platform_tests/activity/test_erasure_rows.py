"""A user is forgotten in the log and the edges; everybody else's sums stay exact, and so do the checks."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from activity_platform import erasure_requests
from activity_platform.activity import erasure_rows, partitions, rollup_sql
from activity_platform.activity.checks import check_conservation, check_late
from activity_platform.activity.rollup import fold
from activity_platform.activity.vocabulary import EDGE_RULES
from activity_platform.erasure_requests import ErasureRequest, Kind
from activity_platform.failures import TransientFailure
from activity_platform_tests.activity.log_rows import add_event, edge_rows, set_watermark
from activity_platform_tests.traces import rows_with

GONE = "gone-user"


def assert_exact(connection: psycopg.Connection) -> None:
    """Edges are the sums of the log's events up to the watermark, as the slices say, and the checks agree."""
    rules = sql.SQL(", ").join(
        sql.SQL("({}, {}, {}::float8)").format(str(verb), str(rule.edge_type), float(rule.weight))
        for verb, rule in EDGE_RULES.items()
    )
    wanted = connection.execute(
        sql.SQL("""
            SELECT user_id, edge_type, object_type, object_id, sum(weight), count(*)
            FROM activity_events JOIN (VALUES {}) AS rule (verb, edge_type, weight) USING (verb)
            WHERE created_at <= (SELECT watermark FROM activity_rollup_state)
            GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        """).format(rules)
    ).fetchall()
    edges = connection.execute(
        "SELECT actor_id, edge_type, target_type, target_id, weight, event_count FROM interaction_edges"
        " ORDER BY 1, 2, 3, 4"
    ).fetchall()
    assert edges == wanted
    assert_slices_add_up(connection)
    assert check_conservation(connection).passed
    assert check_late(connection).passed


def assert_slices_add_up(connection: psycopg.Connection) -> None:
    ((slices, edges),) = connection.execute(
        "SELECT (SELECT coalesce(sum(events), 0) FROM activity_rollup_slice),"
        " (SELECT coalesce(sum(event_count), 0) FROM interaction_edges)"
    )
    assert slices == edges


@pytest.fixture
def request_of_gone(connection: psycopg.Connection) -> ErasureRequest:
    return erasure_requests.request(connection, Kind.USER, subject=GONE)


def finish(connection: psycopg.Connection, request: ErasureRequest) -> dict[str, int]:
    return dict(erasure_requests.finish(connection, request.id).counts)


def add_event_on_user(connection: psycopg.Connection, user: str, about: str, *, verb: str = "react") -> None:
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id) VALUES (%s, %s, 'user', %s)",
        [user, verb, about],
    )


@pytest.fixture
def month(database_url: str) -> None:
    partitions.maintain(database_url, now=None, retention_days=0, ahead=1)


@pytest.mark.usefixtures("month")
def test_a_user_leaves_the_log_the_edges_and_the_keys(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, "shared", user=GONE, times=3)
    add_event(connection, "shared", user=GONE, verb="view")
    add_event(connection, "shared", user="ann", times=2)
    add_event(connection, "old", user=GONE, at="2001-02-03 04:05:06+00")  # in DEFAULT
    add_event_on_user(connection, "ann", GONE)
    add_event_on_user(connection, "ann", "bob")
    fold(database_url, lag_seconds=0)
    kept = [row for row in edge_rows(connection) if GONE not in row[:2] and row[2:4] != ("user", GONE)]
    add_event(connection, "unfolded", user=GONE)
    connection.execute(
        "INSERT INTO idempotency_key (user_id, key, accepted) VALUES (%s, 'k', 1), ('ann', 'k', 1)", [GONE]
    )
    expected = erasure_rows.count_rows(database_url, GONE)
    erasure_rows.erase_rows(database_url, request_of_gone, batch_rows=2)

    assert edge_rows(connection) == kept
    assert finish(connection, request_of_gone) == {"events": 7, "edges": 3, "idempotency_keys": 1}
    assert expected == erasure_rows.UserRows(events=7, edges=3, idempotency_keys=1)
    assert rows_with(connection, GONE) == {}
    assert_exact(connection)


def test_an_object_of_another_kind_with_that_id_is_somebody_elses(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, GONE, user="ann")
    fold(database_url, lag_seconds=0)
    erasure_rows.erase_rows(database_url, request_of_gone)
    assert finish(connection, request_of_gone) == {}
    assert_exact(connection)


def test_windows_agree_after_an_erasure_of_some_slices(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    for users in ([GONE, "ann"], ["ann"], [GONE], ["ann", "bob"]):
        for user in users:
            add_event(connection, user=user, times=2)
        fold(database_url, lag_seconds=0)
    erasure_rows.erase_rows(database_url, request_of_gone)

    ends = [
        row[0] for row in connection.execute("SELECT DISTINCT upper FROM activity_rollup_slice ORDER BY 1")
    ]
    for lower, upper in zip([datetime.min.replace(tzinfo=UTC), *ends], ends, strict=False):
        window = {
            "name": rollup_sql.STATE,
            "lower": max(lower, datetime(1, 1, 2, tzinfo=UTC)),
            "upper": upper,
        }
        ((folded,),) = connection.execute(rollup_sql.FOLDED, window)
        ((logged, _),) = connection.execute(rollup_sql.COUNT_FOLDABLE, window | {"most": None})
        assert folded == logged
    assert_exact(connection)


def test_what_edges_hold_of_dropped_months_leaves_with_them(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user=GONE, at=datetime.now(UTC) - timedelta(days=90), times=5)
    add_event(connection, user="ann", at=datetime.now(UTC) - timedelta(days=90), times=4)
    fold(database_url, lag_seconds=0)
    connection.execute("TRUNCATE activity_events")
    add_event(connection, user=GONE)
    fold(database_url, lag_seconds=0)
    erasure_rows.erase_rows(database_url, request_of_gone)

    assert connection.execute("SELECT actor_id, event_count FROM interaction_edges").fetchall() == [
        ("ann", 4)
    ]
    assert_slices_add_up(connection)
    assert check_conservation(connection).passed


def test_late_events_are_forgotten_too_and_the_sum_stays_right(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user=GONE)
    add_event(connection, user="ann")
    fold(database_url, lag_seconds=0)
    add_event(connection, user=GONE, at=datetime.now(UTC) - timedelta(minutes=5), times=3)
    add_event(connection, user=GONE, at=datetime.now(UTC) - timedelta(days=30000), times=3)

    assert check_late(connection).events == 6
    erasure_rows.erase_rows(database_url, request_of_gone, batch_rows=2)

    assert finish(connection, request_of_gone) == {"events": 7, "edges": 1}
    assert rows_with(connection, GONE) == {}
    assert_exact(connection)


def test_writers_who_had_begun_are_waited_for(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user="ann")
    with psycopg.connect(database_url) as writer:
        add_event(writer, user=GONE, times=2)
        thread = threading.Thread(target=erasure_rows.erase_rows, args=[database_url, request_of_gone])
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        writer.commit()
        thread.join()
    assert finish(connection, request_of_gone) == {"events": 2}
    assert rows_with(connection, GONE) == {}


def test_a_writer_who_does_not_end_is_named_and_the_rest_is_erased(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user=GONE)
    with psycopg.connect(database_url) as writer:
        add_event(writer, user=GONE)
        with pytest.raises(TransientFailure, match="pg_stat_activity"):
            erasure_rows.erase_rows(database_url, request_of_gone, patience_seconds=0.2)
        assert connection.execute("SELECT count(*) FROM activity_events").fetchone() == (0,)
        writer.commit()
    erasure_rows.erase_rows(database_url, request_of_gone)
    assert finish(connection, request_of_gone) == {"events": 2}


def test_no_slice_is_in_flight_while_rows_go(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user=GONE)
    with psycopg.connect(database_url) as slice_:
        slice_.execute(rollup_sql.LOCK_STATE, {"name": rollup_sql.STATE})
        thread = threading.Thread(target=erasure_rows.erase_rows, args=[database_url, request_of_gone])
        thread.start()
        time.sleep(0.3)
        assert connection.execute("SELECT count(*) FROM activity_events").fetchone() == (1,)
        slice_.rollback()
        thread.join()
    assert connection.execute("SELECT count(*) FROM activity_events").fetchone() == (0,)


def test_what_a_fold_adds_between_events_and_edges_goes_with_its_events(
    database_url: str,
    connection: psycopg.Connection,
    request_of_gone: ErasureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_event(connection, user=GONE, times=2)
    fold(database_url, lag_seconds=0)
    erase_edges = erasure_rows._Eraser._erase_edges

    def fold_first(eraser: erasure_rows._Eraser, read_to: datetime) -> None:
        add_event(connection, user=GONE)
        fold(database_url, lag_seconds=0)
        erase_edges(eraser, read_to)

    monkeypatch.setattr(erasure_rows._Eraser, "_erase_edges", fold_first)
    erasure_rows.erase_rows(database_url, request_of_gone)
    assert_exact(connection)
    assert rows_with(connection, GONE) == {"erasure": 1}


def test_a_watermark_set_back_does_not_stop_an_erasure(
    database_url: str, connection: psycopg.Connection, request_of_gone: ErasureRequest
) -> None:
    add_event(connection, user=GONE, times=2)
    fold(database_url, lag_seconds=0)
    set_watermark(connection, "watermark - interval '1 hour'")
    erasure_rows.erase_rows(database_url, request_of_gone)
    assert connection.execute("SELECT count(*) FROM interaction_edges").fetchone() == (0,)
    assert_slices_add_up(connection)


def test_any_id_is_taken_literally(database_url: str, connection: psycopg.Connection) -> None:
    odd_ids = ["it's", 'a"b', "\\x", "ก😀", "%s", "{table}", " "]
    for odd_id in (*odd_ids, "ann"):
        add_event(connection, user=odd_id)
    fold(database_url, lag_seconds=0)
    for left, odd_id in enumerate(odd_ids, start=1):
        request = erasure_requests.request(connection, Kind.USER, subject=odd_id)
        erasure_rows.erase_rows(database_url, request)
        assert finish(connection, request) == {"events": 1, "edges": 1}
        assert connection.execute("SELECT count(*) FROM activity_events").fetchone() == (8 - left,)
    assert_exact(connection)


def test_a_request_shows_nobody(request_of_gone: ErasureRequest) -> None:
    assert GONE not in repr(request_of_gone)
