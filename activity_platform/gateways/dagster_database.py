"""Dagster's own database, read from outside: who beats, what waits, what failed, how large it is.

Dagster tells none of this without loading its instance, which takes seconds and its configuration. The tables
read here are those of Dagster 1.13; a test compares them with what Dagster itself writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

#: What a run waits in. A healthy one leaves each within minutes; STARTED ends at its maximum runtime.
WAITING = ("NOT_STARTED", "QUEUED", "STARTING", "CANCELING")

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
    the oldest run in it, for statuses that some run is in."""

    heartbeats: Mapping[str, float]
    waiting: Mapping[str, float]
    ticks: tuple[Tick, ...]
    bytes: int


def read_heartbeats(connection: psycopg.Connection) -> dict[str, float]:
    """Kind of daemon → seconds since it last beat."""
    return dict(connection.execute(HEARTBEATS).fetchall())


def read_state(connection: psycopg.Connection) -> DagsterState:
    """Four short reads. Raises `psycopg.errors.UndefinedTable` when Dagster never ran on the database."""
    ((size,),) = connection.execute(SIZE)
    return DagsterState(
        heartbeats=read_heartbeats(connection),
        waiting=dict(connection.execute(WAITING_RUNS, [list(WAITING)]).fetchall()),
        ticks=tuple(
            Tick(name, status == "FAILURE", seconds)
            for name, status, seconds in connection.execute(LAST_TICKS)
        ),
        bytes=size,
    )
