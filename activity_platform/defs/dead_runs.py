"""Runs whose process is gone though their code server goes on: reported failed, as that server should have.

The code server looks after its runs in a thread of its own. In Dagster 1.13 that thread ends for good when it
can't reach PostgreSQL just as it finds a run dead, and an outage kills runs. From then on a run that dies
without a word counts as under way until its maximum runtime: half an hour for a drain, and no other of its
kind starts meanwhile. Drop this when `DagsterApiServer._cleanup_thread` outlives an error.

The sensor does it itself and asks for no run: dead ones may hold every slot that a run would need.
"""

from __future__ import annotations

import multiprocessing
import os
import threading

import dagster as dg

from activity_platform.defs import pages
from activity_platform.defs.lost_runs import UNDER_WAY, belongs_to, end

LOOK_SECONDS = 30
WATCHING_THREAD = "grpc-server-cleanup"
STARTED = "Started process for run"
REASON = "Its process ended without a word."


def report_dead_runs(instance: dg.DagsterInstance, *, host: str, port: int) -> list[str]:
    """Ends the runs of this process, the code server on that address, that have no process. Their ids."""
    under_way = instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY))
    # Only now: a run that began since is not in the list, and one that has ended since is seen below.
    alive = {process.pid for process in multiprocessing.active_children()}
    dead = [
        run.run_id
        for run in under_way
        if belongs_to(run, host, port) and (pid := _process(instance, run)) is not None and pid not in alive
    ]
    return [run_id for run_id in dead if _report(instance, run_id)]


def _process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """The run's process id, once it has told it."""
    told = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    for record in told:
        event = record.event_log_entry.dagster_event
        if event is not None and (event.message or "").startswith(STARTED):
            return int(str(event.engine_event_data.metadata["pid"].value))
    return None


def _report(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    end(instance, run, REASON)
    return True


@dg.sensor(
    minimum_interval_seconds=LOOK_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=pages.starter(
        "Reports runs failed whose process is gone, once the code server has ceased to. It starts nothing.",
        "dead_runs_sensor",
    ),
)
def dead_runs_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    if any(thread.name == WATCHING_THREAD for thread in threading.enumerate()):
        return dg.SkipReason("the code server looks after its runs")
    address = os.environ.get("DAGSTER_CODE_HOST", ""), os.environ.get("DAGSTER_CODE_PORT", "0")
    ended = report_dead_runs(context.instance, host=address[0], port=int(address[1]))
    return dg.SkipReason(f"reported as dead: {', '.join(ended) or 'none'}")


def definitions() -> dg.Definitions:
    """The sensor."""
    return dg.Definitions(sensors=[dead_runs_sensor])
