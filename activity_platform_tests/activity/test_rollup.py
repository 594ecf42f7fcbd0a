"""The fold: each event counts once, whatever else goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from activity_platform.activity import partitions, rollup, rollup_sql
from activity_platform.activity.rollup import Hold, fold
from activity_platform.activity.vocabulary import EDGE_RULES, Verb
from activity_platform.failures import PermanentFailure
from activity_platform_tests.activity.log_rows import add_event, edge_rows, set_watermark, weights

LAG = 0.5


@pytest.fixture
def writer(database_url: str) -> Iterator[psycopg.Connection]:
    """A writer in a transaction of its own."""
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


def test_every_verb_adds_its_weight_to_its_edge_type(
    database_url: str, connection: psycopg.Connection
) -> None:
    for verb in Verb:
        add_event(connection, verb=verb, times=2)
    result = fold(database_url, lag_seconds=0)

    found = connection.execute("SELECT edge_type, weight, event_count FROM interaction_edges").fetchall()
    assert set(found) == {
        ("saved", 6, 2),
        ("attended", 12, 4),
        ("visited", 4, 2),
        ("reacted", 2, 2),
        ("tapped", 2, 4),
        ("dismissed", 2, 2),
    }
    assert (result.events, result.edges, result.slices, result.busy) == (16, 6, 1, False)


def test_weights_are_multiples_of_a_half_so_that_their_sums_are_exact() -> None:
    assert all(float(rule.weight * 2).is_integer() and rule.weight > 0 for rule in EDGE_RULES.values())


def test_a_second_fold_changes_no_edge(database_url: str, connection: psycopg.Connection) -> None:
    add_event(connection, times=3)
    fold(database_url, lag_seconds=0)
    before = edge_rows(connection)
    again = fold(database_url, lag_seconds=0)

    assert edge_rows(connection) == before
    assert (again.events, again.edges) == (0, 0)


def test_the_watermark_stays_behind_the_clock_by_the_lag(
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, "old", at=datetime.now(UTC) - timedelta(seconds=31))
    add_event(connection, "new")
    result = fold(database_url, lag_seconds=30)

    assert weights(connection) == {"old": 3}
    assert 30 <= result.lag_seconds < 35
    assert (result.waiting, result.bound_reason) == (1, Hold.LAG)


def test_an_event_of_a_slow_writer_is_not_skipped(  # S15
    database_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    add_event(writer, "late")
    time.sleep(LAG * 2)
    add_event(connection, "early")
    time.sleep(LAG * 2)
    held = fold(database_url, lag_seconds=LAG)
    assert held.bound_reason is Hold.WRITER
    assert held.oldest_writer_seconds is not None
    assert held.oldest_writer_seconds > LAG * 3
    assert held.lag_seconds > held.oldest_writer_seconds
    writer.commit()
    fold(database_url, lag_seconds=0)

    assert weights(connection) == {"late": 3, "early": 3}


def test_a_writer_that_names_a_partition_is_waited_for(  # S15
    database_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    writer.execute(
        "INSERT INTO activity_events_default (id, user_id, verb, object_type, object_id)"
        " OVERRIDING SYSTEM VALUE VALUES (1, 'u1', 'save', 'event', 'late')"
    )
    time.sleep(0.1)
    add_event(connection, "early")
    assert fold(database_url, lag_seconds=0).bound_reason is Hold.WRITER
    writer.commit()
    fold(database_url, lag_seconds=0)

    assert weights(connection) == {"late": 3, "early": 3}


def test_a_transaction_that_only_reads_or_writes_elsewhere_holds_nothing(
    database_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    writer.execute("SELECT count(*) FROM activity_events")
    writer.execute("DELETE FROM idempotency_key")
    add_event(connection)
    result = fold(database_url, lag_seconds=0)

    assert (result.events, result.bound_reason) == (1, Hold.LAG)


def test_a_prepared_transaction_holds_the_watermark_where_it_is(  # S15
    database_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    fold(database_url, lag_seconds=0)
    xid = writer.xid(1, "prepared", database_url.rpartition("/")[2])
    writer.tpc_begin(xid)
    add_event(writer, "prepared")
    writer.tpc_prepare()
    try:
        add_event(connection, "early")
        held = fold(database_url, lag_seconds=0)
        assert (held.bound_reason, held.slices, held.lower) == (Hold.PREPARED, 0, held.watermark)
    finally:
        writer.tpc_commit()
    fold(database_url, lag_seconds=0)

    assert weights(connection) == {"prepared": 3, "early": 3}


@pytest.fixture
def plain_role_url(database_url: str, connection: psycopg.Connection) -> Iterator[str]:
    """The database for a role that may fold, and may not see what others do."""
    connection.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
    yield psycopg.conninfo.make_conninfo(database_url, user="plain", password="plain")
    connection.execute("DROP OWNED BY plain")
    connection.execute("DROP ROLE plain")


def test_a_writer_whose_start_is_hidden_holds_the_watermark_and_is_reported(  # S15
    plain_role_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    add_event(writer, "late")
    add_event(connection, "early")
    held = fold(plain_role_url, lag_seconds=0)
    assert (held.bound_reason, held.slices) == (Hold.HIDDEN_WRITER, 0)
    writer.commit()
    fold(plain_role_url, lag_seconds=0)

    assert weights(connection) == {"late": 3, "early": 3}


def test_a_role_with_pg_read_all_stats_folds_up_to_the_writer(
    plain_role_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    connection.execute("GRANT pg_read_all_stats TO plain")
    add_event(connection, "early")
    add_event(writer, "late")
    assert fold(plain_role_url, lag_seconds=0).bound_reason is Hold.WRITER

    assert weights(connection) == {"early": 3}


def test_a_writer_that_commits_while_the_bound_is_read_is_not_lost(  # S15
    database_url: str,
    connection: psycopg.Connection,
    writer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under one snapshot for bound and fold it would be: its lock is gone, its row not yet visible."""
    connection.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'repeatable read'")
    add_event(writer, "late")
    real = rollup.read_bound

    def commit_then_read(connection: psycopg.Connection, *, lag_seconds: float) -> rollup.Bound:
        writer.commit()
        return real(connection, lag_seconds=lag_seconds)

    monkeypatch.setattr(rollup, "read_bound", commit_then_read)
    try:
        fold(database_url, lag_seconds=0)
    finally:
        connection.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")

    assert weights(connection) == {"late": 3}


@pytest.mark.parametrize("folds", [2, 8])
def test_folds_at_once_count_each_event_once(  # S16
    database_url: str, connection: psycopg.Connection, folds: int
) -> None:
    add_event(connection, verb="react", times=5)
    with ThreadPoolExecutor(folds) as pool:
        results = list(pool.map(lambda _: fold(database_url, lag_seconds=0), range(folds)))

    assert weights(connection) == {"t1": 5}
    assert sum(result.events for result in results) == 5


def test_a_fold_beside_another_says_busy_and_changes_nothing(  # S16
    database_url: str, connection: psycopg.Connection, writer: psycopg.Connection
) -> None:
    add_event(connection)
    writer.execute("SELECT FROM activity_rollup_state FOR UPDATE")
    result = fold(database_url, lag_seconds=0)

    assert (result.busy, result.slices, result.events) == (True, 0, 0)
    assert (result.bound_reason, result.waiting) == (Hold.BUSY, 1)
    assert weights(connection) == {}


def test_a_fold_killed_between_the_edges_and_the_watermark_left_nothing(  # S16
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, verb="react", times=5)
    script = (
        "import sys; from activity_platform.activity import rollup, rollup_sql;"
        "rollup_sql.ADVANCE = 'SELECT pg_sleep(60)'; rollup.fold(sys.argv[1], lag_seconds=0)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, database_url])
    try:
        _wait_for(
            connection, "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(60)' AND pid <> %s"
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 20
    while fold(database_url, lag_seconds=0).busy:  # the server notices within some seconds
        assert time.monotonic() < deadline
        time.sleep(0.2)

    assert weights(connection) == {"t1": 5}


def _wait_for(connection: psycopg.Connection, query: str) -> None:
    deadline = time.monotonic() + 20
    while not connection.execute(query, [connection.info.backend_pid]).fetchone():
        assert time.monotonic() < deadline
        time.sleep(0.02)


FOLD_FOR_EVER = """
import sys
from activity_platform.activity.rollup import fold
while True:
    fold(sys.argv[1], lag_seconds=0, slice_events=40)
"""


def kill_folds(database_url: str, connection: psycopg.Connection, kills: int) -> None:
    """Kills a process that only folds, `kills` times, while two writers ingest; then compares the sums."""
    stop = threading.Event()
    accepted = [0, 0]

    def ingest(number: int) -> None:
        with psycopg.connect(database_url) as own:
            while not stop.is_set():
                add_event(own, f"t{accepted[number] % 50}", user=f"u{number}", verb="tap")
                if accepted[number] % 7 == 0:
                    time.sleep(0.01)
                own.commit()
                accepted[number] += 1

    writers = [threading.Thread(target=ingest, args=[number]) for number in range(2)]
    for thread in writers:
        thread.start()
    try:
        for number in range(kills):
            process = subprocess.Popen([sys.executable, "-c", FOLD_FOR_EVER, database_url])
            _wait_for(  # until it works; from there any moment will do
                connection,
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'activity-platform rollup'"
                " AND datname = current_database() AND pid <> %s",
            )
            time.sleep((number * 7919 % 97) / 970)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        stop.set()
        for thread in writers:
            thread.join()
    while True:
        result = fold(database_url, lag_seconds=0)
        if not result.busy and result.waiting == 0:
            break
        time.sleep(0.1)

    ((weight, events),) = connection.execute("SELECT sum(weight), sum(event_count) FROM interaction_edges")
    assert (weight, events) == (sum(accepted) / 2, sum(accepted))
    assert result.late == 0


def test_killing_the_folding_process_loses_and_doubles_nothing(
    database_url: str, connection: psycopg.Connection
) -> None:
    kill_folds(database_url, connection, 3)


@pytest.mark.heavy
def test_killing_the_folding_process_fifty_times_loses_and_doubles_nothing(
    database_url: str, connection: psycopg.Connection
) -> None:
    kill_folds(database_url, connection, 50)


UPSERT_BACKWARDS = """
    INSERT INTO interaction_edges
    SELECT 'u1', 'saved', 'event', 't' || n, 100, 1, now(), now()
    FROM generate_series(1, 4000) AS n ORDER BY ('t' || n) COLLATE "C" DESC
    ON CONFLICT (actor_id, edge_type, target_type, target_id)
    DO UPDATE SET weight = interaction_edges.weight + excluded.weight
"""


def test_another_writer_in_reverse_order_costs_a_retry_at_most(  # S17
    database_url: str, connection: psycopg.Connection
) -> None:
    rounds = 3
    for _ in range(rounds):
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
            " SELECT 'u1', 'save', 'event', 't' || n FROM generate_series(1, 4000) AS n"
        )
        with ThreadPoolExecutor(2) as pool:
            backwards = pool.submit(_upsert_backwards, database_url)
            forwards = pool.submit(fold, database_url, lag_seconds=0)
            assert forwards.result().events == 4000
            backwards.result()

    found = connection.execute("SELECT DISTINCT weight FROM interaction_edges").fetchall()
    assert found == [(rounds * (100 + 3),)]


def _upsert_backwards(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        while True:
            try:
                connection.execute(UPSERT_BACKWARDS)
                return
            except psycopg.errors.DeadlockDetected:
                continue  # whoever waited first finds the deadlock; the fold has to be right either way


def test_last_at_never_goes_back_and_first_at_takes_the_least(  # S18a
    database_url: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO interaction_edges VALUES"
        " ('u1', 'saved', 'event', 't1', 6, 2, '2026-01-02 12:00Z', '2026-01-02 12:00Z')"
    )
    add_event(connection, at="2026-01-02 11:00Z")
    fold(database_url, lag_seconds=0)

    found = connection.execute("SELECT weight, event_count, first_at, last_at FROM interaction_edges")
    assert found.fetchall() == [
        (9, 3, datetime(2026, 1, 2, 11, tzinfo=UTC), datetime(2026, 1, 2, 12, tzinfo=UTC))
    ]


def test_an_event_stamped_at_or_before_the_watermark_is_counted_late(  # S18b
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection)
    first = fold(database_url, lag_seconds=0)
    add_event(connection, "late", at=first.watermark)
    add_event(connection, "late", at=first.watermark - timedelta(days=3), times=2)
    add_event(connection, "late", verb="view", at=first.watermark)  # carries no affinity: nothing is lost
    result = fold(database_url, lag_seconds=0)

    assert (first.late, result.late, result.events) == (0, 3, 0)
    assert weights(connection) == {"t1": 3}


def test_late_events_are_looked_for_in_older_slices_too(
    database_url: str, connection: psycopg.Connection
) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=5)
    add_event(connection, at=long_ago)
    add_event(connection, at=long_ago + timedelta(hours=1))
    add_event(connection)
    assert fold(database_url, lag_seconds=0, slice_events=1).slices >= 3
    add_event(connection, at=long_ago, times=7)
    found = {fold(database_url, lag_seconds=0).late for _ in range(30)}

    assert 7 in found
    assert found <= {0, 7}


def test_a_watermark_ahead_of_the_clock_is_held_and_what_comes_below_it_is_late(
    database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, "before")
    fold(database_url, lag_seconds=0)
    ahead = set_watermark(connection, "clock_timestamp() + interval '1 hour'")
    add_event(connection, "during", times=2)
    result = fold(database_url, lag_seconds=0)

    assert (result.watermark, result.slices, result.bound_reason) == (ahead, 0, Hold.AHEAD)
    assert -3600 <= result.lag_seconds < -3500
    assert result.late == 2
    assert weights(connection) == {"before": 3}


def test_a_larger_lag_than_before_holds_the_watermark(
    database_url: str, connection: psycopg.Connection
) -> None:
    first = fold(database_url, lag_seconds=0)
    assert fold(database_url, lag_seconds=60).watermark == first.watermark


def test_a_backlog_is_folded_in_slices_each_with_its_watermark(
    database_url: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " SELECT 'u' || n %% 7, 'tap', 'event', 't1', clock_timestamp() - n * interval '1 second'"
        " FROM generate_series(1, 3000) AS n",
        {},
    )
    result = fold(database_url, lag_seconds=0, slice_events=200)

    slices = connection.execute(
        "SELECT lower, upper, events FROM activity_rollup_slice ORDER BY upper"
    ).fetchall()
    assert sum(events for _, _, events in slices) == result.events == 3000
    assert max(events for _, _, events in slices) <= 200
    assert len(slices) <= 40
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(slices))
    assert weights(connection) == {"t1": 1500}


def test_events_of_one_microsecond_are_one_slice(database_url: str, connection: psycopg.Connection) -> None:
    at = datetime.now(UTC) - timedelta(hours=2)
    add_event(connection, at=at, times=50)
    add_event(connection, at=at + timedelta(microseconds=1), times=50)
    fold(database_url, lag_seconds=0, slice_events=10)

    found = connection.execute("SELECT upper, events FROM activity_rollup_slice ORDER BY upper").fetchall()
    assert found == [(at, 50), (at + timedelta(microseconds=1), 50)]
    assert weights(connection) == {"t1": 300}


def test_empty_years_are_passed_in_few_slices(database_url: str, connection: psycopg.Connection) -> None:
    for year in range(1990, 2020, 5):
        add_event(connection, at=f"{year}-06-01Z", times=5)
    result = fold(database_url, lag_seconds=0, slice_events=8)

    assert weights(connection) == {"t1": 90}
    assert result.slices <= 15
    assert result.lag_seconds < 5


def test_events_stamped_ahead_wait_for_their_time(database_url: str, connection: psycopg.Connection) -> None:
    add_event(connection, at=datetime.now(UTC) + timedelta(days=1))
    add_event(connection, at="infinity")
    result = fold(database_url, lag_seconds=0)

    assert (result.events, result.waiting, result.late) == (0, 0, 0)


def test_without_its_state_the_fold_refuses_to_start_from_nothing(
    database_url: str, connection: psycopg.Connection
) -> None:
    connection.execute("DELETE FROM activity_rollup_state")
    with pytest.raises(PermanentFailure, match="activity_rollup_slice"):
        fold(database_url, lag_seconds=0)


def test_sums_do_not_depend_on_the_sessions_defaults(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sql.Identifier(database_url.rpartition("/")[2])
    for setting in (
        "default_transaction_read_only = on",
        "datestyle = 'German'",
        "enable_partitionwise_aggregate = on",
    ):
        connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(name, sql.SQL(setting)))
    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    add_event(connection)
    assert fold(database_url, lag_seconds=0).events == 1


def test_updates_of_existing_edges_are_hot(  # S20c
    database_url: str, connection: psycopg.Connection
) -> None:
    for _ in range(2):
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
            " SELECT 'u' || n %% 100, 'save', 'event', 't' || n FROM generate_series(1, 10000) AS n",
            {},
        )
        assert fold(database_url, lag_seconds=0).edges == 10_000
    deadline = time.monotonic() + 20
    updated = hot = 0
    while updated < 10_000:  # statistics arrive when the fold's session has ended
        assert time.monotonic() < deadline
        time.sleep(0.05)
        ((updated, hot),) = connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'interaction_edges'"
        )
    assert hot >= 0.9 * updated


def test_a_window_reads_its_own_month_only(database_url: str, connection: psycopg.Connection) -> None:
    now = datetime(2026, 5, 15, tzinfo=UTC)
    partitions.maintain(database_url, now=now, retention_days=0, ahead=3)
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " SELECT 'u', 'save', 'event', 't', timestamptz '2026-05-01Z' + n * interval '30 seconds'"
        " FROM generate_series(1, 300000) AS n"
    )
    connection.execute("VACUUM ANALYZE activity_events")  # summarizes, as autovacuum does in time
    window = {"lower": datetime(2026, 6, 3, tzinfo=UTC), "upper": datetime(2026, 6, 3, 1, tzinfo=UTC)}
    plan = "\n".join(
        line for (line,) in connection.execute(sql.SQL("EXPLAIN ") + rollup_sql.FOLD, window).fetchall()
    )

    assert "Bitmap Index Scan on activity_events_y2026m06_created_at_idx" in plan
    assert "Seq Scan" not in plan
    assert "y2026m05" not in plan
    assert "y2026m07" not in plan
    assert "default" not in plan
