"""As a code server starts, the runs of the one before it on the same address end, and no others."""

from __future__ import annotations

import json

import dagster as dg
import pytest
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test

from activity_platform.defs.lost_runs import REASON, report_lost_runs


def _run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, host: str | None, port: int = 4000
) -> str:
    tags = {} if host is None else {GRPC_INFO_TAG: json.dumps({"host": host, "port": port})}
    run: dg.DagsterRun = create_run_for_test(instance, job_name="drain", status=status, tags=tags)
    return run.run_id


def _status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


@pytest.mark.parametrize(
    ("status", "after"),
    [
        (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE),
        (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED),
        (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTING),
        (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.SUCCESS),
    ],
)
def test_what_was_under_way_on_the_address_has_ended(
    status: dg.DagsterRunStatus, after: dg.DagsterRunStatus
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = _run(instance, status, "code")
        assert report_lost_runs(instance, host="code", port=4000) == int(status is not after)
        assert _status(instance, run_id) is after
        messages = [entry.dagster_event.message for entry in instance.all_logs(run_id) if entry.dagster_event]
        assert messages.count(REASON) == int(status is not after)


@pytest.mark.parametrize(("host", "port"), [("other", 4000), ("code", 4001), (None, 4000)])
def test_runs_elsewhere_go_on(host: str | None, port: int) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = _run(instance, dg.DagsterRunStatus.STARTED, host, port)
        assert report_lost_runs(instance, host="code", port=4000) == 0
        assert _status(instance, run_id) is dg.DagsterRunStatus.STARTED
