"""Dagster, by its own database: whether its daemon works, and whether runs get their turn."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from activity_platform.doctor.finding import Finding, ok, red, warn
from activity_platform.gateways import dagster_database, postgres
from activity_platform.settings import Settings

SILENT_SECONDS = 120.0
WAITING_SECONDS = 600.0


def look(settings: Settings) -> Iterator[Finding]:
    """Heartbeats and the queue of runs."""
    if not settings.dagster_postgres_url:
        yield warn("dagster", "not looked at: DAGSTER_POSTGRES_URL is not set", "set it, as for the daemon")
        return
    try:
        with (
            postgres.outages_named(),
            postgres.connect(
                settings.dagster_postgres_url, application_name="activity-platform doctor"
            ) as connection,
        ):
            state = dagster_database.read_state(connection)
    except postgres.DatabaseAway as error:
        yield red("dagster", str(error), "start PostgreSQL, or correct DAGSTER_POSTGRES_URL")
        return
    except psycopg.errors.UndefinedTable:
        yield red("dagster", "its tables are not there", "start its daemon or webserver, which make them")
        return
    yield _heartbeats(state)
    yield from _queue(state)


def _heartbeats(state: dagster_database.DagsterState) -> Finding:
    ages = {name: state.heartbeats.get(name) for name in dagster_database.DAEMONS}
    silent = [name for name, age in ages.items() if age is None or age > SILENT_SECONDS]
    if silent:
        last = [age for age in ages.values() if age is not None]
        since = f"for {min(last):.0f} s" if last else "ever"
        return red(
            "dagster daemon",
            f"{', '.join(silent)} did not beat {since}: nothing is scheduled or started",
            "start `dagster-daemon run`; if it runs, its log tells",
        )
    return ok("dagster daemon", f"beat {max(filter(None, ages.values()), default=0):.0f} s ago")


def _queue(state: dagster_database.DagsterState) -> Iterator[Finding]:
    for status, age in sorted(state.waiting.items()):
        if age > WAITING_SECONDS:
            yield warn(
                "dagster runs",
                f"the oldest {status} run waits for {age:.0f} s",
                "see the run's page for what it waits for; terminate it if nothing works at it",
            )
