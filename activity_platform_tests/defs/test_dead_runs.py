"""A run whose process is gone ends, though nobody who watches over it is left; a run that works goes on."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test

from activity_platform.defs import dead_runs
from activity_platform.defs.dead_runs import REASON, dead_runs_sensor, report_dead_runs

HERE = {"host": "code", "port": 4000}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def worker() -> Iterator[BaseProcess]:
    """A process of this one, as a run is one of its code server."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    yield process
    process.kill()
    process.join()


def run_in(
    instance: dg.DagsterInstance,
    process: BaseProcess | None,
    *,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    port: int = 4000,
) -> str:
    tags = {GRPC_INFO_TAG: json.dumps(HERE | {"port": port})}
    run: dg.DagsterRun = create_run_for_test(instance, job_name="drain", status=status, tags=tags)
    if process is not None:
        told = f"Started process for run (pid: {process.pid})."
        instance.report_engine_event(told, run, EngineEventData.in_process(process.pid or 0))
    return run.run_id


def status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE),
        (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED),
        (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.SUCCESS),
    ],
)
def test_a_run_ends_once_its_process_is_killed(
    instance: dg.DagsterInstance,
    worker: BaseProcess,
    before: dg.DagsterRunStatus,
    after: dg.DagsterRunStatus,
) -> None:
    run_id = run_in(instance, worker, status=before)
    assert report_dead_runs(instance, host="code", port=4000) == []
    assert status(instance, run_id) is before
    worker.kill()
    worker.join()
    assert report_dead_runs(instance, host="code", port=4000) == [run_id] * (after is not before)
    assert status(instance, run_id) is after
    messages = [entry.dagster_event.message for entry in instance.all_logs(run_id) if entry.dagster_event]
    assert messages.count(REASON) == int(after is not before)


def test_runs_of_another_server_and_those_that_tell_no_process_are_left_alone(
    instance: dg.DagsterInstance, worker: BaseProcess
) -> None:
    elsewhere, beginning = run_in(instance, worker, port=4001), run_in(instance, None)
    worker.kill()
    worker.join()
    assert report_dead_runs(instance, host="code", port=4000) == []
    assert {status(instance, one) for one in (elsewhere, beginning)} == {dg.DagsterRunStatus.STARTED}


def test_the_sensor_acts_only_when_the_code_server_does_not(
    instance: dg.DagsterInstance, worker: BaseProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = run_in(instance, worker)
    worker.kill()
    worker.join()
    for name, value in HERE.items():
        monkeypatch.setenv(f"DAGSTER_CODE_{name.upper()}", str(value))
    ending = threading.Event()
    watching = threading.Thread(target=ending.wait, name=dead_runs.WATCHING_THREAD)
    watching.start()
    with dg.build_sensor_context(instance=instance) as context:
        assert dead_runs_sensor.evaluate_tick(context).skip_message == "the code server looks after its runs"
        ending.set()
        watching.join()
        assert dead_runs_sensor.evaluate_tick(context).skip_message == f"reported as dead: {run_id}"
    assert status(instance, run_id) is dg.DagsterRunStatus.FAILURE
