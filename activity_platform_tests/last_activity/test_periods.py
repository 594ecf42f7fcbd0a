"""The edges of the periods, in Python and as the statement reckons them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activity_platform.last_activity.periods import period_of
from activity_platform_tests.last_activity.conftest import World, at

MICROSECOND = timedelta(microseconds=1)
EDGES = [
    (MICROSECOND, "within_1_day"),
    (timedelta(days=1), "within_1_day"),
    (timedelta(days=1) + MICROSECOND, "within_7_days"),
    (timedelta(days=7), "within_7_days"),
    (timedelta(days=7) + MICROSECOND, "within_30_days"),
    (timedelta(days=30), "within_30_days"),
    (timedelta(days=30) + MICROSECOND, "within_90_days"),
    (timedelta(days=90), "within_90_days"),
    (timedelta(days=90) + MICROSECOND, "over_90_days"),
    (timedelta(days=9_000), "over_90_days"),
]


def test_nobody_was_quiet_before_the_first_activity(world: World) -> None:
    assert period_of(None) == "first"
    world.add(1)
    world.says(1)
    world.drain()
    assert world.row(1)[2] == "first"


@pytest.mark.parametrize(("gap", "period"), EDGES)
def test_upper_edges_are_included(gap: timedelta, period: str) -> None:
    assert period_of(gap) == period


def test_the_statement_reckons_the_same(world: World) -> None:
    now = at("2026-03-29T12:00:00")
    for number, (gap, _) in enumerate(EDGES):
        world.add(number, row=("follow", "active", "first", now - gap))
        world.says(number, when=now + number * MICROSECOND)
        world.connection.execute(
            "UPDATE line_user SET last_activity_date = %s WHERE id = %s",
            [now + number * MICROSECOND - gap, world.row_id(number)],
        )
    world.drain()
    assert [world.row(number)[2] for number in range(len(EDGES))] == [period for _, period in EDGES]


@pytest.mark.parametrize("date", ["infinity", "-infinity"])
def test_a_date_that_is_not_finite_counts_as_none(world: World, date: str) -> None:
    world.add(1)
    world.connection.execute("UPDATE line_user SET last_activity_date = %s", [date])
    world.says(1, when=at("2026-03-01T12:00:00"))
    assert world.drain().updated == 1
    assert world.row(1) == ("message", "active", "first", at("2026-03-01T12:00:00"))
