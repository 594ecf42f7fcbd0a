"""`last_activity_period`: how long a user was quiet before the activity."""

from __future__ import annotations

from datetime import timedelta

FIRST = "first"
OVER = "over_90_days"

#: The period of a gap is the first whose upper edge, included, it does not pass.
UPPER_EDGES = (
    ("within_1_day", timedelta(days=1)),
    ("within_7_days", timedelta(days=7)),
    ("within_30_days", timedelta(days=30)),
    ("within_90_days", timedelta(days=90)),
)


def period_of(gap: timedelta | None) -> str:
    """The period of the gap to the activity before; None if there was none."""
    if gap is None:
        return FIRST
    return next((name for name, upper in UPPER_EDGES if gap <= upper), OVER)
