"""Each alarm fires for its cause and no other does. What the cause does to the numbers is not made up: the
cause is brought about, and what /metrics then serves is handed to Prometheus' own rule tester (`promtool`, of
Debian's package prometheus)."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import redis
import yaml  # type: ignore[import-untyped]
from dagster._daemon.types import DaemonHeartbeat
from prometheus_client.parser import text_string_to_metric_families

from activity_platform import health
from activity_platform.gateways import dagster_database
from activity_platform.ingest.metrics import Metrics
from activity_platform.local.server import free_port
from activity_platform.settings import Settings

RULES = Path(__file__).parents[2] / "deploy" / "prometheus-rules.yml"
MINUTES = 60

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

Environment = dict[str, str]
Cause = Callable[[Environment], Environment | None]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


@pytest.fixture
def healthy(
    environment: Environment,
    dagster_postgres_url: str,
    instance: dg.DagsterInstance,
    connection: psycopg.Connection,
) -> Environment:
    connection.execute(
        "CREATE TABLE hot PARTITION OF activity_events FOR VALUES FROM ('2026-01-01Z') TO ('2100-01-01Z')"
    )
    connection.execute("UPDATE activity_rollup_state SET watermark = clock_timestamp()")
    for daemon in dagster_database.DAEMONS:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "one", []))
    return environment | {"DAGSTER_POSTGRES_URL": dagster_postgres_url}


def platform(statement: str) -> Cause:
    def bring_about(environment: Environment) -> None:
        with psycopg.connect(environment["DATABASE_URL"]) as connection:
            connection.execute(statement)

    return bring_about


def dagster(statement: str) -> Cause:
    def bring_about(environment: Environment) -> None:
        with psycopg.connect(environment["DAGSTER_POSTGRES_URL"]) as connection:
            connection.execute(statement)

    return bring_about


def tick(name: str, status: str, minutes: int) -> Cause:
    return dagster(
        f"""
        INSERT INTO instigators (selector_id, status, instigator_body)
        VALUES ('s', 'DECLARED_IN_CODE', '{{"origin": {{"job_name": "{name}"}}}}');
        INSERT INTO job_ticks (selector_id, status, timestamp)
        VALUES ('s', '{status}', (now() AT TIME ZONE 'UTC') - interval '{minutes} minutes')
        """
    )


def a_dead_letter(environment: Environment) -> None:
    with redis.Redis.from_url(environment["REDIS_URL"]) as client:
        client.xadd("create_audience:dead", {"payload": "{}"})


def an_old_message(environment: Environment) -> None:
    hours_ago = int((datetime.now(UTC) - timedelta(hours=3)).timestamp() * 1000)
    with redis.Redis.from_url(environment["REDIS_URL"]) as client:
        client.xadd("create_audience", {"payload": "{}"}, id=f"{hours_ago}-0")


def no_redis(environment: Environment) -> Environment:
    return environment | {"REDIS_URL": f"redis://127.0.0.1:{free_port()}"}


CAUSES: dict[str, Cause] = {
    "SystemAway": no_redis,
    "QueueAge": an_old_message,
    "DeadLetters": a_dead_letter,
    "FoldLag": platform(
        "UPDATE activity_rollup_state SET watermark = clock_timestamp() - interval '10 minutes'"
    ),
    "MonthsAhead": platform("DROP TABLE hot"),
    "MonthsOverdue": platform(
        "CREATE TABLE cold PARTITION OF activity_events FOR VALUES FROM ('2025-01-01Z') TO ('2025-02-01Z')"
    ),
    "DefaultRows": platform(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " VALUES ('u', 'save', 'event', 'e', '2150-01-01Z')"
    ),
    "DaemonHeartbeat": dagster(
        "UPDATE daemon_heartbeats SET timestamp = timestamp - interval '5 minutes'"
        " WHERE daemon_type = 'SENSOR'"
    ),
    "WaitingRuns": dagster(
        "INSERT INTO runs (run_id, status, create_timestamp)"
        " VALUES ('r', 'QUEUED', (now() AT TIME ZONE 'UTC') - interval '2 hours')"
    ),
    "Ticks": tick("interaction_edges_schedule", "FAILURE", 1),
    "SensorStands": tick("audience_queue_sensor", "SKIPPED", 20),
    "RunsFail": dagster(
        "INSERT INTO runs (run_id, status, update_timestamp)"
        " SELECT n::text, 'FAILURE', now() AT TIME ZONE 'UTC' FROM generate_series(1, 11) AS n"
    ),
}


def series(text: bytes, grow: str = "0") -> Iterator[dict[str, str]]:
    """What Prometheus would have scraped, once a minute."""
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
            yield {
                "series": f"{sample.name}{{{labels}}}",
                "values": f"{sample.value:g}+{grow}x{MINUTES}",
            }


def firing(
    tmp_path: Path, input_series: list[dict[str, str]], expected: list[str], *, hours: int = 0
) -> None:
    """Asserts that after an hour exactly the alarms of `expected` fire."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": input_series,
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{hours}h50m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def scrape(environment: Environment) -> list[dict[str, str]]:
    return list(series(health.exposition(health.collect(Settings.load(environment)))))


def test_the_rules_are_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "cure", "runbook"}


def test_every_limit_has_its_alarm_with_the_same_numbers() -> None:
    by_check = {rule["labels"]["check"]: rule for rule in rules() if "check" in rule["labels"]}
    assert by_check.keys() == {limit.name for limit in health.LIMITS}
    for limit in health.LIMITS:
        rule = by_check[limit.name]
        for number in (limit.most, *limit.by_label.values()):
            assert f"> {number:g}" in rule["expr"] or f"> {number}" in rule["expr"]
        assert rule["labels"]["severity"] == ("critical" if limit.severe else "warning")


def test_a_platform_at_rest_is_silent(healthy: Environment, tmp_path: Path) -> None:
    firing(tmp_path, scrape(healthy), [])


@pytest.mark.parametrize("alarm", CAUSES)
def test_each_alarm_fires_for_its_cause_alone(healthy: Environment, alarm: str, tmp_path: Path) -> None:
    environment = CAUSES[alarm](healthy) or healthy
    firing(tmp_path, scrape(environment), [alarm])


def test_an_ingest_that_answers_503_fires(healthy: Environment, tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.answered("/api/v1/activity/events", 202, 0.01, None)
    metrics.answered("/api/v1/activity/events", 503, 0.01, "database_away")
    served = [
        one for one in series(metrics.exposition(), grow="1") if "request_seconds_count" in one["series"]
    ]
    assert len(served) == 2
    firing(tmp_path, scrape(healthy) + served, ["IngestRefuses"])
    firing(tmp_path, scrape(healthy) + [one for one in served if "503" not in one["series"]], [])


def test_nobody_who_tells_anything_fires(tmp_path: Path) -> None:
    firing(tmp_path, [], ["PlatformNotWatched"])


def test_connections_and_growth_fire_beyond_their_limits(healthy: Environment, tmp_path: Path) -> None:
    usual = scrape(healthy)
    crowded = [
        one | {"values": f"0.85+0x{MINUTES}"} if "connections_share" in one["series"] else one
        for one in usual
    ]
    firing(tmp_path, crowded, ["Connections"])
    long = 26 * 60
    lasting = [one | {"values": one["values"].replace(f"x{MINUTES}", f"x{long}")} for one in usual]
    a_minute = health.GROWTH_BYTES // (24 * 60) + 1
    grown = [
        one | {"values": f"1e10+{a_minute}x{long}"} if 'database="dagster"' in one["series"] else one
        for one in lasting
    ]
    firing(tmp_path, grown, ["DiskGrowth"], hours=25)
    firing(tmp_path, lasting, [], hours=25)
