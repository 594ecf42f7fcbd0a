"""What an audit looks at: a window of the fold's slices, and how much of it came from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import psycopg

from activity_platform.activity import audit_sql, rollup_sql
from activity_platform.activity.rollup import read_watermark

BEGINNING = datetime(1, 1, 2, tzinfo=UTC)  # before every slice


@dataclass(frozen=True)
class Window:
    """`(since, watermark]` in segments. Segment n ends at `bounds[n]`, and its slices folded `folded[n]`
    events; what lies after the last bound is in no slice. `begun` is the time of the snapshot."""

    begun: datetime
    since: datetime
    watermark: datetime
    bounds: tuple[datetime, ...]
    folded: tuple[int, ...]

    def span(self, segment: int) -> tuple[datetime, datetime]:
        """The segment as `(lower, upper]`."""
        ends = (self.since, *self.bounds, self.watermark)
        return ends[segment], ends[segment + 1]


@dataclass(frozen=True)
class Filed:
    """What came from files: their days, how many of their events were folded in each segment, and how many
    came late. Users who are `leaving` log and files just now are passed over."""

    days: tuple[date, ...] = ()
    folded: Mapping[int, int] = field(default_factory=dict)
    late: int = 0
    leaving: tuple[str, ...] = field(default=(), repr=False)

    def hold_month_of(self, moment: datetime) -> bool:
        """Whether days of its month come from files; what the log has of that month came after its drop."""
        month = moment.astimezone(UTC).date().replace(day=1)
        return any(day.replace(day=1) == month for day in self.days)


def read_window(connection: psycopg.Connection, length: timedelta | None) -> Window:
    """The window that ends at the watermark and begins with a slice, `length` ago or at the beginning."""
    ((begun,),) = connection.execute("SELECT statement_timestamp()")
    watermark = read_watermark(connection)
    since = BEGINNING
    if length is not None:
        before = {"name": rollup_sql.STATE, "upper": watermark - length}
        ((since,),) = connection.execute(rollup_sql.SLICE_END_BEFORE, before)
    segments = connection.execute(audit_sql.SEGMENTS, {"name": rollup_sql.STATE, "since": since}).fetchall()
    return Window(
        begun,
        since,
        watermark,
        bounds=tuple(end for end, _ in segments),
        folded=tuple(events for _, events in segments),
    )
