"""dagster.yaml and workspace.yaml load as they are, and hold what the platform relies on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from dagster import DagsterInstance
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.workspace.load import location_origins_from_yaml_paths

from activity_platform.defs.jobs import JobClass
from activity_platform.local.services import Stack
from activity_platform_tests.deploy.composition import PROJECT

DATABASE = "dagster_files"
LONGEST_RUN_SECONDS = 3 * 60 * 60


@pytest.fixture(scope="module")
def instance(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterInstance]:
    home = tmp_path_factory.mktemp("dagster")
    shutil.copy(PROJECT / "dagster.yaml", home)
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_POSTGRES_URL", stack.database_url(DATABASE))
        with DagsterInstance.from_config(str(home)) as instance:
            yield instance


@pytest.fixture(scope="module")
def limits(instance: DagsterInstance) -> list[dict[str, Any]]:
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    return [dict(limit) for limit in queue.tag_concurrency_limits]


def test_storage_is_the_database_that_the_environment_names(instance: DagsterInstance, stack: Stack) -> None:
    assert instance.get_runs_count() == 0
    with psycopg.connect(stack.database_url(DATABASE)) as connection:
        connection.execute("SELECT FROM runs, event_logs, job_ticks LIMIT 0")


def test_runs_wait_in_a_queue_and_outlive_a_code_server_that_restarts(instance: DagsterInstance) -> None:
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, QueuedRunCoordinator)
    assert coordinator.dequeue_interval_seconds == 1
    assert coordinator.dequeue_use_threads
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_user_code_failure_retries > 0


def test_audiences_leave_slots_for_every_other_class_of_job(
    instance: DagsterInstance, limits: list[dict[str, Any]]
) -> None:
    by_class = {limit["value"]: limit["limit"] for limit in limits if limit["key"] == "job_class"}
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert by_class.keys() == {job_class.value for job_class in JobClass}
    assert by_class[JobClass.AUDIENCE] <= queue.max_concurrent_runs / 2
    assert sum(by_class.values()) <= queue.max_concurrent_runs


def test_one_run_an_audience_and_two_an_official_account(limits: list[dict[str, Any]]) -> None:
    each = {
        limit["key"]: limit["limit"]
        for limit in limits
        if limit["value"] == {"applyLimitPerUniqueValue": True}
    }
    assert each == {"audience_id": 1, "line_oa_id": 2}


def test_nothing_is_tried_again_behind_the_queues_back(instance: DagsterInstance) -> None:
    assert not instance.run_retries_enabled


def test_runs_that_never_start_or_never_end_are_ended(instance: DagsterInstance) -> None:
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_runtime_seconds == LONGEST_RUN_SECONDS
    assert instance.run_monitoring_start_timeout_seconds > 0


def test_sensors_and_schedules_do_not_wait_for_each_other_and_keep_their_order(
    instance: DagsterInstance,
) -> None:
    for name in ("sensors", "schedules"):
        settings = instance.get_settings(name)
        assert settings["use_threads"]
        assert not settings.get("num_submit_workers")


def test_every_kind_of_tick_is_forgotten_in_time() -> None:
    retention = yaml.safe_load((PROJECT / "dagster.yaml").read_text())["retention"]
    assert 0 < retention["schedule"]["purge_after_days"] <= 14
    days = retention["sensor"]["purge_after_days"]
    assert days.keys() == {"skipped", "started", "success", "failure"}
    assert all(0 < count <= 14 for count in days.values())


def test_nothing_is_reported_to_anybody(instance: DagsterInstance) -> None:
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled


def test_the_workspace_is_one_code_server_under_a_name_that_keeps_cursors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DAGSTER_CODE_HOST", "code")
    monkeypatch.setenv("DAGSTER_CODE_PORT", "4000")
    (origin,) = location_origins_from_yaml_paths([str(PROJECT / "workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    assert (origin.location_name, origin.host, origin.port) == ("activity_platform", "code", 4000)


def test_the_files_name_no_address() -> None:
    for name in ("dagster.yaml", "workspace.yaml"):
        text = (PROJECT / name).read_text()
        assert "://" not in text
        assert "localhost" not in text
