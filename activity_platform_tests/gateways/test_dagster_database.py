"""What is read of Dagster's database is what Dagster has written."""

from __future__ import annotations

import time
from collections.abc import Iterator

import dagster as dg
import psycopg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo

from activity_platform.gateways import dagster_database
from activity_platform.gateways.dagster_database import Tick

REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("activity_platform"), "__repository__")


@dg.op(out=dg.Out(dg.Nothing))
def nothing() -> None:
    """Does nothing."""


@dg.job
def idle() -> None:
    """A job to have runs of."""
    nothing()


@pytest.fixture
def connection(dagster_postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dagster_postgres_url, autocommit=True) as connection:
        yield connection


def add_tick(instance: dg.DagsterInstance, name: str, status: TickStatus, seconds_ago: float) -> None:
    origin = RemoteInstigatorOrigin(REPOSITORY, name)
    if instance.get_instigator_state(origin.get_id(), origin.get_selector().get_id()) is None:
        instance.add_instigator_state(
            InstigatorState(
                origin,
                InstigatorType.SENSOR,
                InstigatorStatus.DECLARED_IN_CODE,
                SensorInstigatorData(min_interval=5),
            )
        )
    instance.create_tick(
        TickData(
            instigator_origin_id=origin.get_id(),
            instigator_name=name,
            instigator_type=InstigatorType.SENSOR,
            status=status,
            timestamp=time.time() - seconds_ago,
            selector_id=origin.get_selector().get_id(),
            run_ids=[],
            error=SerializableErrorInfo("away", [], "QueueAway") if status is TickStatus.FAILURE else None,
        )
    )


def test_an_instance_that_never_worked_is_read_as_such(
    instance: dg.DagsterInstance, connection: psycopg.Connection
) -> None:
    state = dagster_database.read_state(connection)
    assert (state.heartbeats, state.waiting, state.failed_runs, state.ticks) == ({}, {}, 0, ())
    assert state.bytes > 1_000_000


def test_heartbeats_runs_and_ticks_are_read_with_their_ages(
    instance: dg.DagsterInstance, connection: psycopg.Connection
) -> None:
    instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 40, "SENSOR", "one", []))
    for status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED):
        instance.create_run_for_job(idle, status=status)
    instance.report_run_failed(instance.create_run_for_job(idle))
    add_tick(instance, "a_sensor", TickStatus.FAILURE, 90)
    add_tick(instance, "a_sensor", TickStatus.SKIPPED, 30)
    add_tick(instance, "b_sensor", TickStatus.SUCCESS, 50)
    add_tick(instance, "b_sensor", TickStatus.FAILURE, 20)

    state = dagster_database.read_state(connection)

    assert state.heartbeats.keys() == {"SENSOR"}
    assert 40 <= state.heartbeats["SENSOR"] < 60
    assert state.waiting.keys() == {"NOT_STARTED"}
    assert 0 <= state.waiting["NOT_STARTED"] < 20
    assert state.failed_runs == 1
    ticks = {tick.name: tick for tick in state.ticks}
    assert ticks["a_sensor"] == Tick("a_sensor", False, ticks["a_sensor"].seconds_ago)
    assert ticks["b_sensor"] == Tick("b_sensor", True, ticks["b_sensor"].seconds_ago)
    assert 30 <= ticks["a_sensor"].seconds_ago < 50


def test_the_statuses_are_dagster_s() -> None:
    assert set(dagster_database.FINISHED) == {status.value for status in FINISHED_STATUSES}
    working = {"STARTED", "MANAGED", "SUSPENDED"}
    assert (
        set(dagster_database.WAITING)
        == {status.value for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES} - working
    )


def test_the_daemons_are_dagster_s() -> None:
    from dagster._daemon.daemon import MonitoringDaemon, SchedulerDaemon, SensorDaemon
    from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

    kinds = (SchedulerDaemon, SensorDaemon, QueuedRunCoordinatorDaemon, MonitoringDaemon)
    assert tuple(kind.daemon_type() for kind in kinds) == dagster_database.DAEMONS
