"""Dagster's own history: old runs with their events, logs and check results go, so many at a time."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
import psycopg

from activity_platform.gateways import dagster_database

log = logging.getLogger(__name__)


#: Deleted together: some thousand events, well under a second.
BATCH_RUNS = 200


@dataclass(frozen=True)
class Forgotten:
    """Counts, and the database's size afterwards. `more`: something was left for the next time."""

    runs: int
    events: int
    check_results: int
    bytes: int
    more: bool


def forget(
    instance: dg.DagsterInstance,
    connection: psycopg.Connection,
    *,
    before: datetime,
    most: int,
    patience_seconds: float,
) -> Forgotten:
    """Deletes at most `most` runs that ended before that time, for at most so long.

    `connection` leads to the instance's database, in autocommit. What sensors count and each asset's last
    events stay, see `dagster_database.FORGETTABLE_RUNS`.
    """
    deadline = time.monotonic() + patience_seconds
    found = dagster_database.find_forgettable_runs(connection, before=before, most=most)
    runs = events = 0
    for start in range(0, len(found), BATCH_RUNS):
        if time.monotonic() > deadline:
            break
        batch = found[start : start + BATCH_RUNS]
        _delete_logs(instance, batch)
        events += dagster_database.forget_runs(connection, batch)
        runs += len(batch)
    runless = dagster_database.forget_runless_events(connection, before=before, most=most)
    results = dagster_database.forget_check_results(connection, before=before, most=most)
    if runs or runless or results:
        dagster_database.give_back_space(connection)
    ((size,),) = connection.execute(dagster_database.SIZE)
    more = runs < len(found) or most in (runs, runless, results)
    return Forgotten(runs, events + runless, results, size, more)


def _delete_logs(instance: dg.DagsterInstance, run_ids: Sequence[str]) -> None:
    # What the runs' processes printed; Dagster itself leaves it for ever.
    for run_id in run_ids:
        try:
            instance.compute_log_manager.delete_logs(prefix=[run_id])
        except OSError as error:
            log.warning("logs of run %s stay: %s", run_id, error)
