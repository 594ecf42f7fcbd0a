"""The sensor and the runs of audiences, in process, on the test's database, Valkey, S3 and LINE simulator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest

from activity_platform.audience import firings, overview, process
from activity_platform.definitions import build_defs
from activity_platform.defs import audience
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World, world_of
from activity_platform_tests.simulated_line import SimulatedLine

A, B, C = (f"U{letter * 32}" for letter in "abc")
SENSOR = "audience_queue_sensor"


@pytest.fixture
def retrying(environment: dict[str, str]) -> Settings:
    """Three attempts without a wait."""
    return Settings.load(environment | {"AUDIENCE_RETRY_SECONDS": "0,0"})


@pytest.fixture
def definitions(retrying: Settings) -> dg.Definitions:
    return build_defs(retrying)


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


@pytest.fixture
def world(
    retrying: Settings,
    stack: Stack,
    connection: psycopg.Connection,
    line: SimulatedLine,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    with world_of(retrying, connection) as world:
        yield world


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Sequence[dg.RunRequest]:
    sensor = definitions.resolve_sensor_def(SENSOR)
    repository = definitions.get_repository_def()
    settings = repository.get_top_level_resources()["settings"]
    context = dg.build_sensor_context(
        instance=instance, repository_def=repository, resources={"settings": settings}
    )
    return sensor.evaluate_tick(context).run_requests or ()


def run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, request: dg.RunRequest
) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def(str(request.job_name)).execute_in_process(
        instance=instance, run_config=request.run_config, tags=dict(request.tags), raise_on_error=False
    )


def run_until_idle(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> list[tuple[dg.RunRequest, dg.ExecuteInProcessResult]]:
    ran: list[tuple[dg.RunRequest, dg.ExecuteInProcessResult]] = []
    for _ in range(20):
        requests = tick(definitions, instance)
        if not requests:
            return ran
        ran += [(request, run(definitions, instance, request)) for request in requests]
    raise AssertionError("the sensor goes on asking")


def shown(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    found = [
        event.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(asset)
    ]
    (materialization,) = (one for one in found)
    return {name: value.value for name, value in materialization.metadata.items()}


def test_a_message_goes_through_visible_steps_and_shows_what_came_out(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    entry = world.create(audience_id, [A, B, "Uwrong"])
    (request,) = tick(definitions, instance)
    assert world.services.queues.depth("create_audience") == 1  # it takes nothing itself
    assert request.run_key == f"create_audience/{entry}/1"
    result = run(definitions, instance, request)
    assert result.success
    steps = [event.step_key for event in result.all_node_events if event.is_step_success]
    assert steps == ["load", "read_file", "fetch_profiles", "change_membership", "publish"]
    world.assert_consistent(audience_id, [A, B])
    metadata = shown(result, "audience_members")
    numbers = {"total": 3, "valid": 2, "invalid": 1, "members": 2, "added": 2, "removed": 0, "firings": 0}
    assert metadata.items() >= numbers.items()
    assert sorted(metadata["sample"].split(", ")) == ["Uaaaa…", "Ubbbb…"]
    bucket = world.store.locate("x").bucket
    assert metadata["result"] == f"s3://{bucket}/{world.info(audience_id)['filePath']}"
    assert metadata["rejects"].endswith("-rejects.csv")
    assert instance.get_dynamic_partitions("audiences") == [str(audience_id)]
    (row,) = world.imports(audience_id)
    assert row["run_id"] == result.run_id
    assert tick(definitions, instance) == ()


def test_config_keys_and_tags_carry_nothing_that_a_producer_wrote(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    entry = world.create(audience_id, [A], message_id="from the producer")
    (request,) = tick(definitions, instance)
    assert request.run_config == {
        "ops": {"load": {"config": {"queue": "create_audience", "entry_id": entry}}}
    }
    own = {name: value for name, value in request.tags.items() if not name.startswith("dagster/")}
    assert own == {
        "queue": "create_audience",
        "entry_id": entry,
        "audience_id": str(audience_id),
        "line_oa_id": str(world.line_oa_id),
        "organization_id": str(world.organization_id),
    }


def test_s16_per_audience_the_messages_run_in_their_order(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    first, second = world.add_audience(), world.add_audience()
    world.create(first, [A])
    world.create(second, [C])
    world.update(first, [A, B])
    world.delete(first)
    asked = tick(definitions, instance)
    assert [request.tags["audience_id"] for request in asked] == [str(first), str(second)]
    ran = run_until_idle(definitions, instance)
    assert [request.job_name for request, _ in ran if request.tags["audience_id"] == str(first)] == [
        "create_audience_job",
        "update_audience_job",
        "delete_audience_job",
    ]
    world.assert_consistent(first, [])
    world.assert_consistent(second, [C])
    assert instance.get_dynamic_partitions("audiences") == [str(second)]


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_s14_a_message_whose_run_is_unfinished_is_not_asked_for(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World, status: str
) -> None:
    audience_id = world.add_audience()
    world.create(audience_id, [A])
    (request,) = tick(definitions, instance)
    job = definitions.resolve_job_def(str(request.job_name))
    tags = dict(job.tags) | dict(request.tags)
    unfinished = instance.create_run_for_job(
        job, run_config=request.run_config, tags=tags, status=dg.DagsterRunStatus[status]
    )
    assert tick(definitions, instance) == ()
    instance.report_run_failed(unfinished)
    (again,) = tick(definitions, instance)
    assert str(again.run_key).endswith("/2")  # S15: a key is good for one run


def test_a_failed_attempt_fails_its_run_and_the_last_one_buries(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    entry = world.send("create_audience", audience_id, filePath="not/there.csv")
    ran = run_until_idle(definitions, instance)
    assert [request.run_key for request, _ in ran] == [f"create_audience/{entry}/{n}" for n in (1, 2, 3)]
    assert not any(result.success for _, result in ran)
    failure = ran[-1][1].filter_events(lambda event: event.is_step_failure)[0].step_failure_data
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description is not None
    assert failure.user_failure_data.description.startswith("file_not_found: the file is not in")
    assert failure.user_failure_data.metadata["attempts"].value == 3
    (letter,) = world.dead("create_audience")
    assert (letter.reason, letter.attempts) == ("file_not_found", 3)
    history = instance.get_latest_materialization_event(dg.AssetKey("audience_imports"))
    assert history is not None
    assert history.asset_materialization is not None
    assert history.asset_materialization.metadata["failed"].value == 1


def test_a_run_that_counted_no_attempt_is_not_followed_at_once(
    environment: dict[str, str], instance: dg.DagsterInstance, world: World
) -> None:
    definitions = build_defs(Settings.load(environment | {"AUDIENCE_RETRY_SECONDS": "2,60"}))
    world.create(world.add_audience(), [A])
    (request,) = tick(definitions, instance)
    instance.report_run_failed(started_run(definitions, instance, request))
    assert tick(definitions, instance) == ()
    time.sleep(2)
    (again,) = tick(definitions, instance)
    assert str(again.run_key).endswith("/2")


def test_entries_that_are_no_messages_are_swept_by_one_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    for _ in range(2):
        world.services.queues.publish("update_audience", b"\xff\xfe")
    (request,) = tick(definitions, instance)
    assert request.job_name == "sweep_audience_queues_job"
    assert run(definitions, instance, request).success
    assert len(world.dead("update_audience")) == 2
    assert tick(definitions, instance) == ()


def test_a_message_that_was_done_meanwhile_ends_its_run_well(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    world.create(audience_id, [A])
    (request,) = tick(definitions, instance)
    world.process()
    result = run(definitions, instance, request)
    assert result.success
    assert [event.step_key for event in result.all_node_events if event.is_step_skipped] == [
        *("read_file", "fetch_profiles", "change_membership", "publish")
    ]


def test_one_oa_fills_neither_a_tick_nor_the_list_of_runs(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    for _ in range(2 * audience.RUNS_OF_AN_OA):
        world.create(world.add_audience(), [A])
    other_oa = world.add_oa("other")
    world.send("create_audience", world.add_audience(line_oa_id=other_oa), [A], lineOaId=other_oa)
    asked = tick(definitions, instance)
    assert [request.tags["line_oa_id"] for request in asked] == [
        *[str(world.line_oa_id)] * audience.RUNS_OF_AN_OA,
        str(other_oa),
    ]


def test_personal_data_stays_out_of_what_dagster_keeps(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    world: World,
    line: SimulatedLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it, through the daemon and with logs and metrics, is in `acceptance/test_no_secrets.py`."""
    audience_id = world.add_audience()
    line.answer("unauthorized", times=1)
    world.create(audience_id, [A, B], message_id="producers-own")
    world.mookept(audience_id, [A], "remove")
    run_until_idle(definitions, instance)

    def broken(*_: object) -> None:
        world.connection.execute("INSERT INTO line_user SELECT * FROM line_user")

    monkeypatch.setattr(process, "_write_members", broken)
    world.mookept(audience_id, [A], "add")
    run_until_idle(definitions, instance)
    records = itertools.chain.from_iterable(instance.all_logs(one.run_id) for one in instance.get_runs())
    kept = "\n".join(str(record) for record in records)
    assert "internal_error" in kept
    assert "not_authorized" in kept
    for secret in (A, B, "channel-token-1", "producers-own"):
        assert secret not in kept


def started_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, request: dg.RunRequest
) -> dg.DagsterRun:
    """A run that works, as far as Dagster knows."""
    job = definitions.resolve_job_def(str(request.job_name))
    tags = dict(job.tags) | dict(request.tags)
    run = instance.create_run_for_job(
        job, run_config=request.run_config, tags=tags, status=dg.DagsterRunStatus.STARTING
    )
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, job.name)
    instance.report_dagster_event(event, run.run_id)
    return run


def test_runs_whose_worker_is_dead_are_reported_failed_and_asked_for_again(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive, dead, lost = (world.create(world.add_audience(), [A]) for _ in range(3))
    runs = {}
    for request in tick(definitions, instance):
        entry = request.tags["entry_id"]
        runs[entry] = started_run(definitions, instance, request).run_id
        if entry != lost:
            process.load(world.services, "create_audience", entry, run_id=runs[entry])
    world.connection.execute(
        "UPDATE message_attempt SET heartbeat_at = now() + interval '1 h' WHERE message_id = %s", [alive]
    )
    monkeypatch.setattr(overview, "DEAD_AFTER", timedelta(seconds=1))
    time.sleep(1.1)
    schedule = definitions.resolve_schedule_def("silent_audience_runs_schedule")
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(
        instance=instance,
        repository_def=repository,
        resources={"settings": repository.get_top_level_resources()["settings"]},
    )
    (request,) = schedule.evaluate_tick(context).run_requests or ()
    assert run(definitions, instance, request.with_replaced_attrs(job_name=schedule.job_name)).success
    ended = {entry: instance.get_run_by_id(run_id) for entry, run_id in runs.items()}
    assert {entry for entry, one in ended.items() if one and one.is_finished} == {dead, lost}
    world.connection.execute(
        "UPDATE message_attempt SET heartbeat_at = now() - interval '1 h' WHERE message_id <> %s", [alive]
    )
    assert {one.tags["entry_id"] for one in tick(definitions, instance)} == {dead, lost}
    assert schedule.evaluate_tick(context).run_requests == []


def test_firings_that_a_run_left_are_sent_by_the_schedule(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    rule = world.add_rule(audience_id, "added")
    world.add_rule(audience_id, "added", {"unknown": 1})
    world.create(audience_id, [A])
    world.process()
    world.connection.execute("UPDATE trigger_firing SET published_at = NULL")
    world.services.queues.client.delete(firings.STREAM)
    job = definitions.resolve_job_def("trigger_firings_job")
    metadata = shown(job.execute_in_process(instance=instance), "trigger_firings")
    assert (metadata["published"], metadata["unpublished"], metadata["rules_with_a_problem"]) == (1, 0, 1)
    (good, _) = metadata["firings_by_rule"].records
    assert (good.data["rule"], good.data["firings"], good.data["unpublished"]) == (rule, 1, 0)
    assert world.services.queues.depth(firings.STREAM) == 1


def test_the_checks_turn_red_when_a_count_is_wrong_or_a_message_was_given_up(
    definitions: dg.Definitions, instance: dg.DagsterInstance, world: World
) -> None:
    audience_id = world.add_audience()
    world.create(audience_id, [A, B])
    world.process()

    def checks() -> dict[str, bool]:
        job = definitions.resolve_job_def("audience_checks_job")
        found = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        return {one.check_name: one.passed for one in found}

    assert checks() == {"members_are_as_told": True, "no_dead_letters": True}
    world.connection.execute("UPDATE line_user SET audience_ids = '{}' WHERE line_user_id = %s", [A])
    world.services.queues.publish("create_audience", b"{}")
    world.process()
    assert checks() == {"members_are_as_told": False, "no_dead_letters": False}
