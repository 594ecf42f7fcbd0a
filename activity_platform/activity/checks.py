"""What must always hold of the fold and the months, measured. Each result says whether it `passed`.

They read what the fold recorded and a window of the log, never the whole of it. The Dagster asset checks and
the tests share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg import IsolationLevel

from activity_platform.activity import rollup, rollup_sql
from activity_platform.activity.partition_plan import Action, gaps, hot_months, name_of, plan
from activity_platform.activity.partitions import read_catalog

CONSERVATION_WINDOW = timedelta(minutes=10)
#: A month is due once it is past retention; maintenance has this long to drop it.
OVERDUE_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class Lag:
    """How far the watermark is behind the database's clock, in seconds; negative when it is ahead."""

    watermark: datetime
    seconds: float
    most_seconds: float

    @property
    def passed(self) -> bool:
        return 0 <= self.seconds <= self.most_seconds


@dataclass(frozen=True)
class Late:
    """Events that came after the watermark had passed their stamp; no edge holds them."""

    events: int

    @property
    def passed(self) -> bool:
        return self.events == 0


@dataclass(frozen=True)
class Conservation:
    """Events of the window `(lower, upper]`: in the log, in the slices, and beside the edges they went to.

    `missing` are in the log and not in their edge, `extra` in an edge that began in the window and not in
    the log. Late events are missing from their edges and from the slices alike.
    """

    lower: datetime
    upper: datetime
    edges: int
    logged: int
    folded: int
    missing: int
    extra: int

    @property
    def passed(self) -> bool:
        return self.extra == 0 and self.missing <= max(0, self.logged - self.folded)


@dataclass(frozen=True)
class Months:
    """Hot months without a partition, rows that sit in DEFAULT, and what should be gone since a day."""

    missing: tuple[str, ...]
    default_rows: int
    overdue: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.missing and not self.default_rows and not self.overdue


def check_lag(connection: psycopg.Connection, *, most_seconds: float) -> Lag:
    """The lag as it is now."""
    watermark = rollup.read_watermark(connection)
    ((now,),) = connection.execute("SELECT clock_timestamp()")
    return Lag(watermark, (now - watermark).total_seconds(), most_seconds)


def check_late(connection: psycopg.Connection) -> Late:
    """Late events of the last hour and one older slice."""
    return Late(rollup.count_late(connection, rollup.read_watermark(connection)))


def check_conservation(
    connection: psycopg.Connection, *, window: timedelta = CONSERVATION_WINDOW
) -> Conservation:
    """Log, slices and edges of the newest slices that cover `window`, in one snapshot.

    On a connection in autocommit, outside a transaction.
    """
    before, connection.isolation_level = connection.isolation_level, IsolationLevel.REPEATABLE_READ
    try:
        with connection.transaction():
            upper = rollup.read_watermark(connection)
            bounds = {"name": rollup_sql.STATE, "upper": upper - window}
            ((lower,),) = connection.execute(rollup_sql.SLICE_END_BEFORE, bounds)
            bounds |= {"lower": lower, "upper": upper}
            ((edges, logged, missing, extra),) = connection.execute(rollup_sql.COMPARE_EDGES, bounds)
            ((folded,),) = connection.execute(rollup_sql.FOLDED, bounds)
    finally:
        connection.isolation_level = before
    return Conservation(lower, upper, edges, logged, folded, missing, extra)


def check_months(
    connection: psycopg.Connection, *, now: datetime | None, retention_days: int, ahead: int
) -> Months:
    """The partitions as they are at `now` (None: the database's clock)."""
    ((clock,),) = connection.execute("SELECT clock_timestamp()")
    now = now or clock
    catalog = read_catalog(connection)
    hot = {name_of(month): month for month in hot_months(now, ahead)}
    planned = plan(
        catalog,
        now=now - OVERDUE_AFTER,
        watermark=datetime.max.replace(tzinfo=now.tzinfo),
        retention_days=retention_days,
        ahead=ahead,
    )
    return Months(
        missing=tuple(
            name
            for name, month in hot.items()
            if any(upper > now for _, upper in gaps(month, catalog.partitions))
        ),
        default_rows=sum(stray.rows for stray in catalog.strays) + catalog.unplaceable_rows,
        overdue=tuple(step.partition.name for step in planned.of(Action.DROP)),
    )
