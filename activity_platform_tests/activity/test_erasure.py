"""A user is forgotten in the database and in the training corpus, whatever goes on meanwhile."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile

import psycopg
import pytest

from activity_platform import erasure_requests
from activity_platform.activity import erasure, partitions
from activity_platform.activity.audit import audit_edges
from activity_platform.activity.checks import check_conservation, check_late
from activity_platform.activity.corpus_checks import check_days, check_gaps
from activity_platform.activity.corpus_export import export_days
from activity_platform.activity.corpus_location import corpus_of
from activity_platform.activity.partition_plan import month_of
from activity_platform.activity.rollup import fold
from activity_platform.erasure_requests import ErasureRequest, Kind
from activity_platform.settings import Settings
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, set_watermark
from activity_platform_tests.traces import objects_with, rows_with

GONE = "gone-user"
NOW = datetime.now(UTC)
OLD_MONTH = month_of(NOW - timedelta(days=45))
MONTH_AGO, YESTERDAY = OLD_MONTH + timedelta(days=14), NOW - timedelta(days=1)


@pytest.fixture
def settings(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    bucket_of_its_own(environment, monkeypatch)
    return Settings.load(environment)


def _request(connection: psycopg.Connection) -> ErasureRequest:
    return erasure_requests.request(connection, Kind.USER, subject=GONE)


def assert_audited(settings: Settings) -> None:
    with audit_edges(settings.database_url, corpus_of(settings)) as found:
        assert list(found.differences) == []


def test_hot_days_are_rewritten_at_once_and_older_ones_later(
    settings: Settings, connection: psycopg.Connection
) -> None:
    partitions.maintain(settings.database_url, now=MONTH_AGO, retention_days=0, ahead=3)
    for at in (MONTH_AGO, YESTERDAY):
        add_event(connection, user=GONE, at=at, times=2)
        add_event(connection, user="ann", at=at, times=3)
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
            " VALUES ('bob', 'react', 'user', %s, %s)",
            [GONE, at],
        )
    set_watermark(connection, "now() - interval '90 days'")
    fold(settings.database_url, lag_seconds=30 * 86_400)
    fold(settings.database_url, lag_seconds=0)
    assert export_days(settings.database_url, corpus_of(settings)).rows == 12
    later = OLD_MONTH + timedelta(days=34)
    assert partitions.maintain(settings.database_url, now=later, retention_days=1, ahead=3).dropped == 1

    request = _request(connection)
    first = erasure.erase_user(settings, request, older_files=False)
    assert (first.erasure.status, first.files_waiting) == ("pending", 1)
    assert objects_with(settings, GONE) == [
        f"training/activity_events/dt={MONTH_AGO:%Y-%m-%d}/events.parquet"
    ]
    done = erasure.erase_user(settings, request, older_files=True)

    assert (done.erasure.status, done.files_waiting) == ("done", 0)
    assert dict(done.erasure.counts) == {
        "events": 3, "edges": 2, "training_files": 2, "training_rows": 6,
    }  # fmt: skip
    assert objects_with(settings, GONE) == []
    assert rows_with(connection, GONE) == {}
    assert_audited(settings)
    assert export_days(settings.database_url, corpus_of(settings)).written == 0
    edges = connection.execute("SELECT actor_id, event_count FROM interaction_edges").fetchall()
    assert edges == [("ann", 6)]


def _write_of_user(number: int, connection: psycopg.Connection) -> None:
    with connection.transaction():
        connection.execute(
            "INSERT INTO idempotency_key (user_id, key, accepted) VALUES (%s, %s, 2)", [GONE, str(number)]
        )
        add_event(connection, f"t{number % 20}", user=GONE)
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
            " VALUES ('u1', 'react', 'user', %s)",
            [GONE],
        )


@contextmanager
def _traffic(settings: Settings) -> Iterator[threading.Event]:
    """Ingest, fold and export at once. The event ends what is written by the user and about them."""
    ending, silent = threading.Event(), threading.Event()

    def write(number: int, connection: psycopg.Connection) -> None:
        add_event(connection, f"t{number % 20}", user=f"u{number % 7}", verb="tap")

    def until(end: threading.Event, work: Callable[[int, psycopg.Connection], object]) -> None:
        with psycopg.connect(settings.database_url, autocommit=True) as own:
            for number in takewhile(lambda _: not end.is_set(), count()):
                work(number, own)

    with ThreadPoolExecutor(4) as pool:
        working = [
            pool.submit(until, ending, write),
            pool.submit(until, silent, _write_of_user),
            pool.submit(until, ending, lambda *_: fold(settings.database_url, lag_seconds=0.2)),
            pool.submit(until, ending, lambda *_: export_days(settings.database_url, corpus_of(settings))),
        ]
        try:
            yield silent
        finally:
            ending.set()
            silent.set()
        for one in working:
            one.result()


ERASE = """
import os, sys
from activity_platform import erasure_requests
from activity_platform.activity import erasure, erasure_rows
from activity_platform.gateways import postgres
from activity_platform.settings import Settings
erasure_rows.BATCH_ROWS = erasure_rows.READ_BLOCKS = 7
settings = Settings.load(os.environ)
with postgres.connect(settings.database_url, application_name="test") as connection:
    request = erasure_requests.request(connection, erasure_requests.Kind.USER, subject=sys.argv[1])
print("begins", flush=True)
erasure.erase_user(settings, request, older_files=True)
"""


def erase_under_traffic(
    settings: Settings, environment: dict[str, str], connection: psycopg.Connection, *, kills: int
) -> None:
    """Erases while everything goes on, killed `kills` times, and looks for what is left."""
    partitions.maintain(settings.database_url, now=None, retention_days=0, ahead=1)
    for day in range(4):
        for number in range(300):
            user = GONE if number % 3 == 0 else f"u{number % 7}"
            add_event(connection, f"t{number % 20}", user=user, at=NOW - timedelta(days=day, seconds=number))
    with _traffic(settings) as silent:
        time.sleep(0.5)
        for kill in range(kills):
            process = subprocess.Popen(
                [sys.executable, "-c", ERASE, GONE], env=os.environ | environment, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.Random(kill).random() * 1.5)
            process.kill()
            process.communicate()
        silent.set()
        time.sleep(0.1)
        erasure.erase_user(settings, _request(connection), older_files=True)
        time.sleep(0.5)
    while fold(settings.database_url, lag_seconds=0).waiting:
        pass
    export_days(settings.database_url, corpus_of(settings))

    assert rows_with(connection, GONE) == {}
    assert objects_with(settings, GONE) == []
    assert_exact(settings, connection)


def assert_exact(settings: Settings, connection: psycopg.Connection) -> None:
    assert_audited(settings)
    ((edges, slices),) = connection.execute(
        "SELECT (SELECT sum(event_count) FROM interaction_edges),"
        " (SELECT sum(events) FROM activity_rollup_slice)"
    )
    assert edges == slices
    assert check_conservation(connection).passed
    assert check_days(connection, corpus_of(settings), grace=timedelta(0)).passed
    assert check_gaps(connection, corpus_of(settings)).passed


def test_nothing_comes_back_while_ingest_fold_and_export_go_on(
    settings: Settings, environment: dict[str, str], connection: psycopg.Connection
) -> None:
    erase_under_traffic(settings, environment, connection, kills=0)


@pytest.mark.heavy
def test_an_erasure_that_is_killed_again_and_again_under_traffic_is_finished_in_the_end(
    settings: Settings, environment: dict[str, str], connection: psycopg.Connection
) -> None:
    erase_under_traffic(settings, environment, connection, kills=20)


@pytest.mark.heavy
def test_nobody_waits_for_the_erasure_of_a_big_user(
    settings: Settings, connection: psycopg.Connection
) -> None:
    """Half a million events of theirs among a million: each request is stored within a second meanwhile."""
    partitions.maintain(settings.database_url, now=None, retention_days=0, ahead=1)
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
        " SELECT CASE WHEN n %% 2 = 0 THEN %s ELSE 'u' || n %% 1000 END, 'save', 'event', 't' || n %% 5000"
        " FROM generate_series(1, 1000000) AS n",
        [GONE],
    )
    fold(settings.database_url, lag_seconds=0)
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(erasure.erase_user, settings, _request(connection), older_files=True)
        while not erasing.done():
            started = time.monotonic()
            add_event(connection, user="ann")
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.01)
    done = erasing.result()
    assert done.erasure.counts["events"] == 500_000
    assert slowest < 1
    fold(settings.database_url, lag_seconds=0)
    assert check_late(connection).passed
    assert_exact(settings, connection)
