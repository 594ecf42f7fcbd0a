"""The sensor and the run of last activity, in process, on the test's database and Valkey."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import psycopg
import pytest

from activity_platform.definitions import build_defs
from activity_platform.defs import last_activity
from activity_platform.failures import TransientFailure
from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, QueueAway, Queues
from activity_platform.settings import Settings

JOB = "line_user_last_activity_job"
MESSAGE = {
    "lineUserId": "Uann",
    "lineOaId": 1,
    "organizationId": 1,
    "activityType": "message",
    "activityStatus": "active",
}


@pytest.fixture
def definitions(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setattr(last_activity, "IDLE_SECONDS", 0)
    return build_defs(settings)


@pytest.fixture
def queues(redis_url: str) -> Iterator[Queues]:
    client = queue_module.connect(redis_url)
    yield Queues(client)
    client.close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    sensor = definitions.resolve_sensor_def("line_user_last_activity_sensor")
    repository = definitions.get_repository_def()
    settings = repository.get_top_level_resources()["settings"]
    context = dg.build_sensor_context(
        instance=instance, repository_def=repository, resources={"settings": settings}
    )
    return list(sensor.evaluate_tick(context).run_requests or ())


def test_the_sensor_asks_for_one_drain_while_messages_wait(
    definitions: dg.Definitions, instance: dg.DagsterInstance, queues: Queues
) -> None:
    assert tick(definitions, instance) == []
    queues.publish(LAST_ACTIVITY, b"{}")
    assert len(tick(definitions, instance)) == 1
    assert queues.depth(LAST_ACTIVITY) == 1  # it takes nothing itself


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_the_sensor_waits_for_the_drain_that_is_under_way(
    definitions: dg.Definitions, instance: dg.DagsterInstance, queues: Queues, status: str
) -> None:
    queues.publish(LAST_ACTIVITY, b"{}")
    job = definitions.resolve_job_def(JOB)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus[status])
    assert tick(definitions, instance) == []
    instance.delete_run(run.run_id)
    for ended in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        instance.create_run_for_job(job, status=ended)
    assert len(tick(definitions, instance)) == 1


def test_s04_while_redis_is_away_a_tick_fails_at_once_and_says_so(
    environment: dict[str, str], instance: dg.DagsterInstance
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://:s3cret@127.0.0.1:{unused.getsockname()[1]}/0"
    definitions = build_defs(Settings.load(environment | {"REDIS_URL": url}))
    started = time.monotonic()
    with pytest.raises(QueueAway, match=r"^Redis can't be reached") as outage:
        tick(definitions, instance)
    assert time.monotonic() - started < 2
    assert "s3cret" not in str(outage.value)


def test_a_run_drains_the_queue_and_shows_numbers_that_can_be_plotted(
    definitions: dg.Definitions, instance: dg.DagsterInstance, queues: Queues, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id) VALUES (1, 1, 'Uann')"
    )
    queues.publish(LAST_ACTIVITY, json.dumps(MESSAGE))
    queues.publish(LAST_ACTIVITY, json.dumps(MESSAGE | {"lineUserId": "Unobody"}))
    queues.publish(LAST_ACTIVITY, b"bad")

    result = definitions.resolve_job_def(JOB).execute_in_process(instance=instance)

    (materialization,) = result.asset_materializations_for_node("line_user_last_activity")
    shown: dict[str, Any] = {name: value.value for name, value in materialization.metadata.items()}
    counted = {"read": 3, "updated": 1, "stale": 0, "unknown": 1, "buried": 1}
    assert shown.items() >= (counted | {"waiting": 0, "dead_letters": 1}).items()
    assert shown["messages_per_second"] > 0
    assert {"seconds", "oldest_seconds"} < set(shown)
    assert all(isinstance(value, int | float) for value in shown.values())
    assert queues.depth(LAST_ACTIVITY) == 0
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("redis_never_evicts", True)


def test_a_redis_that_may_evict_turns_the_check_red(
    definitions: dg.Definitions, instance: dg.DagsterInstance, queues: Queues
) -> None:
    queues.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        result = definitions.resolve_job_def(JOB).execute_in_process(instance=instance)
    finally:
        queues.client.config_set("maxmemory-policy", "noeviction")
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.metadata["maxmemory_policy"].value == "allkeys-lru"


def test_while_postgres_is_away_the_run_fails_and_the_message_stays(
    environment: dict[str, str], instance: dg.DagsterInstance, queues: Queues
) -> None:
    queues.publish(LAST_ACTIVITY, b"{}")
    away = environment["DATABASE_URL"].rsplit("/", 1)[0] + "/nowhere"
    definitions = build_defs(Settings.load(environment | {"DATABASE_URL": away}))
    job = definitions.resolve_job_def(JOB)
    with pytest.raises(dg.DagsterError) as failure:
        job.execute_in_process(instance=instance)
    assert isinstance(failure.value.__cause__, TransientFailure)
    assert str(failure.value.__cause__).startswith("PostgreSQL can't be reached")
    assert queues.depth(LAST_ACTIVITY) == 1
    assert len(tick(definitions, instance)) == 1  # it will be tried again
