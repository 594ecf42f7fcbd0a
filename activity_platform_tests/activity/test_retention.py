"""Keys go after their day, slices of months that are gone are added up; sums stay what they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg

from activity_platform.activity.retention import Forgotten, forget

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

SLICES = """
INSERT INTO activity_rollup_slice (name, lower, upper, events, edges)
SELECT 'interaction_edges', hour - interval '1 hour', hour, 3, 2
FROM generate_series('2026-08-01 01:00Z'::timestamptz, '2026-11-30 12:00Z', '1 hour') AS hour
"""
SUMS = "SELECT sum(events), sum(edges), min(lower), max(upper) FROM activity_rollup_slice"
BY_MONTH = """
SELECT to_char(upper AT TIME ZONE 'UTC', 'MM')::int, count(*) FROM activity_rollup_slice GROUP BY 1 ORDER BY 1
"""


def add_month(connection: psycopg.Connection, month: str, until: str) -> None:
    connection.execute(
        f"CREATE TABLE m{month[5:7]} PARTITION OF activity_events"
        f" FOR VALUES FROM ('{month}Z') TO ('{until}Z')"
    )


def test_slices_of_months_that_are_gone_become_one_a_month(connection: psycopg.Connection) -> None:
    add_month(connection, "2026-10-01 00:00", "2026-11-01 00:00")
    add_month(connection, "2026-11-01 00:00", "2026-12-01 00:00")
    connection.execute(SLICES)
    sums = connection.execute(SUMS).fetchone()

    first = forget(connection, now=NOW, most=1_000)
    assert first == Forgotten(0, slices=998, more=True)
    assert connection.execute(SUMS).fetchone() == sums
    forget(connection, now=NOW, most=1_000)

    assert connection.execute(SUMS).fetchone() == sums
    # A slice's month is that of its end: the last of September ends with October.
    assert connection.execute(BY_MONTH).fetchall() == [(8, 1), (9, 1), (10, 744), (11, 709)]
    assert forget(connection, now=NOW, most=1_000) == Forgotten(0, 0, more=False)


def test_slices_stay_while_the_log_has_their_month(connection: psycopg.Connection) -> None:
    add_month(connection, "2026-08-01 00:00", "2026-09-01 00:00")
    connection.execute(SLICES)
    assert forget(connection, now=NOW, most=10_000).slices == 0


def test_the_month_before_this_one_stays_even_if_its_rows_are_gone(connection: psycopg.Connection) -> None:
    connection.execute(SLICES)
    forget(connection, now=NOW, most=10_000)
    assert connection.execute(BY_MONTH).fetchall() == [(8, 1), (9, 1), (10, 744), (11, 709)]


def test_keys_are_forgotten_after_their_day(connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO idempotency_key SELECT 'u', hour::text, 1, %s - hour * interval '1 hour'"
        " FROM generate_series(1, 48) AS hour",
        [NOW + timedelta(minutes=1)],
    )
    assert forget(connection, now=NOW, most=20) == Forgotten(20, 0, more=True)
    assert forget(connection, now=NOW, most=20) == Forgotten(4, 0, more=False)
    ((oldest,),) = connection.execute("SELECT max(key::int) FROM idempotency_key")
    assert oldest == 24
