"""The platform in numbers: what is read, what passes, what is said when a system is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import dagster as dg
import psycopg
import pytest
from dagster._daemon.types import DaemonHeartbeat
from prometheus_client.parser import text_string_to_metric_families

from activity_platform import health
from activity_platform.gateways import dagster_database, queue
from activity_platform.gateways.queue import QUEUES, Burial, Queues
from activity_platform.health import Reading
from activity_platform.local.server import free_port
from activity_platform.settings import Settings

MONTHS = """
CREATE TABLE hot PARTITION OF activity_events FOR VALUES
FROM ('2000-01-01Z') TO ('2100-01-01Z')
"""


@pytest.fixture
def healthy(
    environment: dict[str, str],
    dagster_postgres_url: str,
    instance: dg.DagsterInstance,
    connection: psycopg.Connection,
) -> dict[str, str]:
    """A platform at rest: months there, everything folded, the daemon beating."""
    connection.execute(MONTHS)
    connection.execute("UPDATE activity_rollup_state SET watermark = clock_timestamp() - interval '10 s'")
    for daemon in dagster_database.DAEMONS:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "one", []))
    return environment | {"DAGSTER_POSTGRES_URL": dagster_postgres_url, "RETENTION_DAYS": "0"}


def read(environment: dict[str, str]) -> tuple[Reading, ...]:
    return health.collect(Settings.load(environment))


def failed(environment: dict[str, str]) -> dict[str, str]:
    """Limits that are not kept, with what is said."""
    return {one.limit.name: one.text for one in health.judge(read(environment)) if not one.passed}


def value(readings: Sequence[Reading], measure: str, of: str = "") -> float:
    (found,) = [one.value for one in readings if (one.measure, one.of) == (measure, of)]
    return found


def bury(redis_url: str, queue_name: str) -> None:
    with closing(queue.connect(redis_url)) as client:
        queues = Queues(client)
        queues.publish(queue_name, "{}")
        (entry,) = queues.peek(queue_name).entries
        queues.bury([Burial(entry, "bad_payload", "no audienceId")], now=datetime.now(UTC))


def test_a_platform_at_rest_keeps_every_limit_and_has_every_number(healthy: dict[str, str]) -> None:
    readings = read(healthy)
    assert [one.text for one in health.judge(readings) if not one.passed] == []
    told = {one.measure for one in readings}
    assert told == set(health.MEASURES) - {"tick_failed", "tick_seconds"}  # there was no tick yet
    assert 5 < value(readings, "fold_lag_seconds") < 60
    assert value(readings, "database_bytes", "dagster") > 1_000_000


def test_what_waits_and_what_was_given_up_is_counted_by_queue(healthy: dict[str, str]) -> None:
    bury(healthy["REDIS_URL"], "create_audience")
    old = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000)
    with closing(queue.connect(healthy["REDIS_URL"])) as client:
        client.xadd(queue.LAST_ACTIVITY, {"payload": "{}"}, id=f"{old}-0")
        client.xadd(queue.UPDATE_AUDIENCE, {"payload": "{}"}, id=f"{old}-0")
    readings = read(healthy)
    assert value(readings, "queue_dead", "create_audience") == 1
    assert value(readings, "queue_depth", "line_user_last_activity") == 1
    assert 3600 <= value(readings, "queue_oldest_seconds", "update_audience") < 3700
    verdicts = failed(healthy)
    assert verdicts.keys() == {"queue_age", "dead_letters"}
    # An audience's message may go through all its attempts; one of last activity should be gone by now.
    assert verdicts["queue_age"].startswith("line_user_last_activity 36")
    assert "update_audience" not in verdicts["queue_age"]


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        ("UPDATE activity_rollup_state SET watermark = clock_timestamp() - interval '1 hour'", "fold_lag"),
        ("UPDATE activity_rollup_state SET watermark = clock_timestamp() + interval '1 hour'", "fold_lag"),
        ("DROP TABLE hot", "months_ahead"),
        (
            "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
            " VALUES ('u', 'save', 'event', 'e', '2150-01-01Z')",
            "default_rows",
        ),
    ],
)
def test_the_log_and_its_fold_are_watched(
    healthy: dict[str, str], connection: psycopg.Connection, statement: str, limit: str
) -> None:
    connection.execute(statement)
    assert failed(healthy).keys() == {limit}


def test_dagster_is_watched(
    healthy: dict[str, str], dagster_postgres_url: str, instance: dg.DagsterInstance
) -> None:
    with psycopg.connect(dagster_postgres_url) as connection:
        connection.execute("UPDATE daemon_heartbeats SET timestamp = timestamp - interval '1 hour'")
        connection.execute("DELETE FROM daemon_heartbeats WHERE daemon_type = 'SENSOR'")
        connection.execute(
            "INSERT INTO runs (run_id, status, create_timestamp, update_timestamp) VALUES"
            " ('q', 'QUEUED', (now() AT TIME ZONE 'UTC') - interval '2 hours', now() AT TIME ZONE 'UTC'),"
            " ('f', 'FAILURE', now() AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC')"
        )
    assert failed(healthy).keys() == {"daemon_heartbeat", "waiting_runs"}
    readings = read(healthy)
    assert value(readings, "daemon_heartbeat_seconds", "SENSOR") == float("inf")
    assert value(readings, "runs_failed") == 1


@pytest.mark.parametrize(
    ("name", "system", "limits"),
    [
        (
            "DATABASE_URL",
            "postgresql",
            {"fold_lag", "months_ahead", "default_rows", "connections", "disk_growth"},
        ),
        ("REDIS_URL", "redis", {"queue_age", "dead_letters"}),
        ("DAGSTER_POSTGRES_URL", "dagster", {"daemon_heartbeat", "waiting_runs", "ticks"}),
    ],
)
def test_a_system_that_is_away_is_a_reading_and_fails_what_it_would_tell(
    healthy: dict[str, str], name: str, system: str, limits: set[str]
) -> None:
    scheme = healthy[name].partition("://")[0]
    environment = healthy | {name: f"{scheme}://127.0.0.1:{free_port()}/x"}
    assert value(read(environment), "up", system) == 0
    assert failed(environment) == dict.fromkeys(limits, f"{system} is away")


def test_domains_choose_what_is_looked_at(healthy: dict[str, str]) -> None:
    alone = read(healthy | {"DOMAINS": "activity", "REDIS_URL": "redis://127.0.0.1:1"})
    assert "queue_depth" not in {one.measure for one in alone}
    last = read(healthy | {"DOMAINS": "last_activity"})
    assert [one.of for one in last if one.measure == "queue_depth"] == ["line_user_last_activity"]
    assert "fold_lag_seconds" not in {one.measure for one in last}


def test_the_exposition_is_what_prometheus_reads(healthy: dict[str, str]) -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(health.exposition(read(healthy)).decode())
    }
    depth = families["activity_platform_queue_depth"]
    assert {sample.labels["queue"] for sample in depth.samples} == set(QUEUES)
    assert families["activity_platform_fold_lag_seconds"].samples[0].value > 5
    assert all(family.type == "gauge" and family.documentation for family in families.values())


def test_many_who_ask_at_once_cost_one_look() -> None:
    looks = []

    def look() -> list[Reading]:
        time.sleep(0.05)
        looks.append(1)
        return [Reading("up", len(looks), "redis")]

    watch = health.Watch(look, fresh_seconds=0.3)
    seen: list[Sequence[Reading]] = []
    threads = [threading.Thread(target=lambda: seen.append(watch.readings())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(looks), len(seen)) == (1, 20)
    time.sleep(0.35)
    assert watch.readings() == [Reading("up", 2, "redis")]
