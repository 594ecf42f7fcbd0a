"""What is forgotten of the activity tables once nobody asks for it; the log itself goes by months.

Slices of months that are gone are added up to one a month: their sums still say how many events the edges
hold, and a minute of long ago needs no row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from activity_platform.activity.event_log import KEY_LIFETIME
from activity_platform.activity.partition_plan import month_of
from activity_platform.activity.partitions import read_catalog

#: By the BRIN index on created_at.
FORGET_KEYS = """
DELETE FROM idempotency_key WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM idempotency_key WHERE created_at < %(before)s LIMIT %(most)s
))
"""
#: Primary key: a window's slices are found by their ends. Those of one month become one.
ADD_UP_SLICES = """
WITH old AS (
    DELETE FROM activity_rollup_slice WHERE (name, upper) IN (
        SELECT name, upper FROM activity_rollup_slice
        WHERE upper < %(before)s ORDER BY name, upper LIMIT %(most)s)
    RETURNING *
), kept AS (
    INSERT INTO activity_rollup_slice (name, lower, upper, events, edges, folded_at)
    SELECT name, min(lower), max(upper), sum(events), sum(edges), max(folded_at)
    FROM old GROUP BY name, date_trunc('month', upper, 'UTC')
    RETURNING 1
)
SELECT (SELECT count(*) FROM old) - (SELECT count(*) FROM kept), (SELECT count(*) FROM old)
"""


@dataclass(frozen=True)
class Forgotten:
    """Counts of rows that are gone. `more`: something was left for the next time."""

    idempotency_keys: int
    slices: int
    more: bool


def forget(connection: psycopg.Connection, *, now: datetime, most: int) -> Forgotten:
    """Forgets at most `most` rows of each table. On a connection in autocommit."""
    keys = connection.execute(FORGET_KEYS, {"before": now - KEY_LIFETIME, "most": most}).rowcount
    window = {"before": _first_needed(connection, now), "most": most}
    ((gone, read),) = connection.execute(ADD_UP_SLICES, window)
    return Forgotten(keys, gone, most in (keys, read))


def _first_needed(connection: psycopg.Connection, now: datetime) -> datetime:
    """Slices are compared with the log, where that still has their months, and in any case with the month
    before this one."""
    lowers = [part.lower for part in read_catalog(connection).partitions if part.lower]
    last_month = month_of(month_of(now) - timedelta(days=1))
    return min([last_month, *lowers])
