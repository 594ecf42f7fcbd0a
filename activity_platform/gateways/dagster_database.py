"""Dagster's own database, seen from outside: who beats, what waits, what failed, what is old.

Dagster tells none of this without loading its instance, which takes seconds and its configuration, and some
of it not at all. The tables are those of Dagster 1.13; tests compare them with what Dagster itself writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

#: What the daemon runs for us, by the names under which its parts beat every 30 s.
DAEMONS = ("SCHEDULER", "SENSOR", "QUEUED_RUN_COORDINATOR", "MONITORING")
#: What a run waits in. A healthy one leaves each within minutes; STARTED ends at its maximum runtime.
WAITING = ("NOT_STARTED", "QUEUED", "STARTING", "CANCELING")
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")

#: One row a kind of daemon. Dagster writes times without a zone, in UTC.
HEARTBEATS = """
SELECT daemon_type, extract(epoch FROM clock_timestamp() - timestamp AT TIME ZONE 'UTC')::float8
FROM daemon_heartbeats
"""

#: By idx_run_range, which starts with the status.
WAITING_RUNS = """
SELECT status, extract(epoch FROM clock_timestamp() - min(create_timestamp) AT TIME ZONE 'UTC')::float8
FROM runs WHERE status = ANY(%s) GROUP BY status
"""

#: By idx_run_range.
FAILED_RUNS = """
SELECT count(*) FROM runs
WHERE status = 'FAILURE' AND update_timestamp > (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 hour'
"""

#: The newest tick of each schedule and sensor that is switched on, by idx_tick_selector_timestamp.
LAST_TICKS = """
SELECT instigator_body::jsonb #>> '{origin,job_name}', tick.status,
       extract(epoch FROM clock_timestamp() - tick.timestamp AT TIME ZONE 'UTC')::float8
FROM instigators
CROSS JOIN LATERAL (
    SELECT job_ticks.status, job_ticks.timestamp FROM job_ticks
    WHERE job_ticks.selector_id = instigators.selector_id
    ORDER BY job_ticks.timestamp DESC LIMIT 1
) AS tick
WHERE instigators.status IN ('RUNNING', 'DECLARED_IN_CODE')
"""

#: Finished runs that ended before a time, the newest of them first, but for
#: - those with the newest event of an asset or partition, or the newest result of a check;
#: - those of a series that has a run that is young or unfinished.
#: A series are the runs on one entry of a queue, or else those whose keys differ only in the number after the
#: last slash. A sensor numbers its keys by how many runs of the series there are: with the newest gone first,
#: the next number is always free, wherever the deletion is interrupted.
#: By idx_run_range, idx_run_tags, idx_events_by_asset and the whole of asset_check_executions.
FORGETTABLE_RUNS = r"""
WITH needed AS (
    SELECT run_id FROM event_logs WHERE id IN (
        SELECT max(id) FROM event_logs
        WHERE asset_key IS NOT NULL AND dagster_event_type IN ('ASSET_MATERIALIZATION', 'ASSET_OBSERVATION')
        GROUP BY asset_key, dagster_event_type, partition)
    UNION
    SELECT run_id FROM asset_check_executions WHERE id IN (
        SELECT max(id) FROM asset_check_executions GROUP BY asset_key, check_name, partition)
), keyed AS (
    SELECT run_id, coalesce(
        max(value) FILTER (WHERE key = 'queue') || '/' || max(value) FILTER (WHERE key = 'entry_id'),
        regexp_replace(max(value) FILTER (WHERE key = 'dagster/run_key'), '/\d+$', '')) AS series
    FROM run_tags WHERE key IN ('queue', 'entry_id', 'dagster/run_key') GROUP BY run_id
), active AS (
    SELECT series FROM keyed JOIN runs USING (run_id)
    WHERE status <> ALL(%(finished)s) OR update_timestamp >= %(before)s
)
SELECT run_id FROM runs LEFT JOIN keyed USING (run_id)
WHERE status = ANY(%(finished)s) AND update_timestamp < %(before)s
  AND NOT EXISTS (SELECT FROM needed WHERE needed.run_id = runs.run_id)
  AND NOT EXISTS (SELECT FROM active WHERE active.series = keyed.series)
ORDER BY runs.id DESC LIMIT %(most)s
"""

#: What Dagster's `delete_run` does one run and some connections at a time, 40 times as slow. The tags of a
#: run go with it. By idx_events_by_run_id, idx_asset_event_tags_event_id and the unique run_id.
FORGET_RUNS = """
WITH events AS (
    DELETE FROM event_logs WHERE run_id = ANY(%(runs)s) RETURNING id
), tags AS (
    DELETE FROM asset_event_tags WHERE event_id IN (SELECT id FROM events)
), gone AS (
    DELETE FROM runs WHERE run_id = ANY(%(runs)s)
)
SELECT count(*) FROM events
"""

#: Events that no run made, such as what a failed step has to tell. By idx_events_by_run_id.
FORGET_RUNLESS_EVENTS = """
DELETE FROM event_logs WHERE id IN (
    SELECT id FROM event_logs
    WHERE run_id = '' AND timestamp < %(before)s AND id NOT IN (
        SELECT max(id) FROM event_logs WHERE run_id = '' GROUP BY asset_key, dagster_event_type, partition)
    ORDER BY id LIMIT %(most)s)
"""

#: Dagster deletes none of these, nor with their runs. Primary key in order.
FORGET_CHECK_RESULTS = """
DELETE FROM asset_check_executions WHERE id IN (
    SELECT id FROM asset_check_executions
    WHERE create_timestamp < %(before)s AND id NOT IN (
        SELECT max(id) FROM asset_check_executions GROUP BY asset_key, check_name, partition)
    ORDER BY id LIMIT %(most)s)
"""

GROWING = ("runs", "run_tags", "event_logs", "asset_event_tags", "asset_check_executions")

SIZE = "SELECT pg_database_size(current_database())"


@dataclass(frozen=True)
class Tick:
    """The newest look of a schedule or sensor."""

    name: str
    failed: bool
    seconds_ago: float


@dataclass(frozen=True)
class DagsterState:
    """Ages in seconds. `heartbeats`: kind of daemon → since it last beat; `waiting`: a run's status → age of
    the oldest run in it, for statuses that some run is in. `failed_runs` of the last hour."""

    heartbeats: Mapping[str, float]
    waiting: Mapping[str, float]
    failed_runs: int
    ticks: tuple[Tick, ...]
    bytes: int


def read_heartbeats(connection: psycopg.Connection) -> dict[str, float]:
    """Kind of daemon → seconds since it last beat."""
    return dict(connection.execute(HEARTBEATS).fetchall())


def read_state(connection: psycopg.Connection) -> DagsterState:
    """Five short reads. Raises `psycopg.errors.UndefinedTable` when Dagster never ran on the database."""
    ((size,),) = connection.execute(SIZE)
    ((failed,),) = connection.execute(FAILED_RUNS)
    return DagsterState(
        heartbeats=read_heartbeats(connection),
        waiting=dict(connection.execute(WAITING_RUNS, [list(WAITING)]).fetchall()),
        failed_runs=failed,
        ticks=tuple(
            Tick(name, status == "FAILURE", seconds)
            for name, status, seconds in connection.execute(LAST_TICKS)
        ),
        bytes=size,
    )


def find_forgettable_runs(connection: psycopg.Connection, *, before: datetime, most: int) -> list[str]:
    """Ids of runs that ended before that time and that nothing needs, in the order to forget them."""
    values = {"finished": list(FINISHED), "before": _naive(before), "most": most}
    return [row[0] for row in connection.execute(FORGETTABLE_RUNS, values)]


def forget_runs(connection: psycopg.Connection, run_ids: Sequence[str]) -> int:
    """Deletes the runs with their events, all or nothing; returns how many events."""
    ((events,),) = connection.execute(FORGET_RUNS, {"runs": list(run_ids)})
    return int(events)


def forget_runless_events(connection: psycopg.Connection, *, before: datetime, most: int) -> int:
    """Deletes old events of no run but for the newest of each kind; returns how many."""
    return connection.execute(FORGET_RUNLESS_EVENTS, {"before": _naive(before), "most": most}).rowcount


def forget_check_results(connection: psycopg.Connection, *, before: datetime, most: int) -> int:
    """Deletes old results of asset checks but for the newest of each; returns how many."""
    return connection.execute(FORGET_CHECK_RESULTS, {"before": _naive(before), "most": most}).rowcount


def give_back_space(connection: psycopg.Connection) -> None:
    """Lets the tables use the space of deleted rows again, and cuts off what is free at their ends."""
    connection.execute(f"VACUUM (SKIP_LOCKED) {', '.join(GROWING)}")


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)
