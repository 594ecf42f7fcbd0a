"""Runs that died with their code server: reported failed as the next one starts, before it takes any.

    python -m activity_platform.defs.lost_runs

A run of the default launcher is a process of the code server that started it, and nothing else watches it.
Killed with its container or machine, it counts as under way until its maximum runtime, and meanwhile no other
of its kind starts. The code server about to start on the same address (DAGSTER_CODE_HOST, DAGSTER_CODE_PORT)
has no runs yet, so those that are said to be under way there are lost.
"""

from __future__ import annotations

import json
import os
import sys

import click
import dagster as dg
from dagster._core.storage.tags import GRPC_INFO_TAG

UNDER_WAY = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)  # STARTING has its own timeout
REASON = "Its process ended with the code server."


def report_lost_runs(instance: dg.DagsterInstance, *, host: str, port: int) -> int:
    """Ends the lost runs of the code server on that address, and returns how many there were."""
    under_way = instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY))
    lost = [run for run in under_way if belongs_to(run, host, port)]
    for run in lost:
        end(instance, run, REASON)
    return len(lost)


def belongs_to(run: dg.DagsterRun, host: str, port: int) -> bool:
    """Whether the code server on that address started it."""
    address = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    return (address.get("host"), address.get("port")) == (host, port)


def end(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> None:
    """Reports a run without a process as what it has become: canceled if that was asked for, else failed."""
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, reason)
    else:
        instance.report_run_failed(run, reason)


def main() -> int:
    with dg.DagsterInstance.get() as instance:
        lost = report_lost_runs(
            instance, host=os.environ["DAGSTER_CODE_HOST"], port=int(os.environ["DAGSTER_CODE_PORT"])
        )
    click.echo(json.dumps({"lost_runs": lost}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
