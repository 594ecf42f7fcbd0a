"""The plan for the log's partitions, from a catalog and a time alone."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activity_platform.activity.partition_plan import (
    MOST_STRAY_MONTHS,
    Action,
    Catalog,
    Partition,
    Plan,
    Stray,
    gaps,
    hot_months,
    month_of,
    name_of,
    next_month,
    plan,
)
from activity_platform.failures import UsageError

DEFAULT = Partition("activity_events_default", None, None)
FAR = datetime(9999, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def month(text: str, name: str | None = None) -> Partition:
    start = at(f"{text}-01")
    return Partition(name or name_of(start), start, next_month(start))


def planned(
    *partitions: Partition,
    now: str,
    watermark: datetime = FAR,
    retention_days: int = 30,
    ahead: int = 0,
    strays: tuple[Stray, ...] = (),
    others: dict[str, str] | None = None,
    archive_before_drop: bool = False,
    can_archive: bool = False,
    unarchived: dict[str, str] | None = None,
) -> Plan:
    return plan(
        Catalog(partitions, DEFAULT, strays, others=others or {}),
        now=at(now),
        watermark=watermark,
        retention_days=retention_days,
        ahead=ahead,
        archive_before_drop=archive_before_drop,
        can_archive=can_archive,
        unarchived=unarchived or {},
    )


def names(plan: Plan, action: Action) -> list[str]:
    return [step.partition.name for step in plan.of(action)]


def test_the_current_month_and_those_ahead_are_made() -> None:
    made = planned(now="2026-11-30T23:59:59", ahead=3).of(Action.CREATE)
    assert [(step.partition.name, step.partition.lower, step.partition.upper) for step in made] == [
        ("activity_events_y2026m11", at("2026-11-01"), at("2026-12-01")),
        ("activity_events_y2026m12", at("2026-12-01"), at("2027-01-01")),
        ("activity_events_y2027m01", at("2027-01-01"), at("2027-02-01")),
        ("activity_events_y2027m02", at("2027-02-01"), at("2027-03-01")),
    ]


def test_from_the_last_of_january_no_month_is_left_out() -> None:  # S14
    assert [f"{month:%Y-%m-%d}" for month in hot_months(at("2027-01-31T23:00"), 3)] == [
        *("2027-01-01", "2027-02-01", "2027-03-01", "2027-04-01")
    ]


def test_the_month_is_that_of_utc() -> None:
    local = datetime.fromisoformat("2026-12-01T05:00:00+05:45")
    assert name_of(month_of(local)) == "activity_events_y2026m11"


@pytest.mark.parametrize(
    ("held", "due"),
    [
        ("2026-01", "2026-03-03"),
        ("2026-02", "2026-03-31"),
        ("2026-08", "2026-10-01"),
        ("2026-09", "2026-10-31"),
        ("2026-11", "2026-12-31"),
        ("2026-12", "2027-01-31"),
    ],
)
def test_a_month_goes_thirty_days_of_24_hours_after_its_end(held: str, due: str) -> None:  # S14
    before = (at(due) - timedelta(seconds=1)).isoformat()[:19]
    assert names(planned(month(held), now=due), Action.DROP) == [month(held).name]
    assert names(planned(month(held), now=before), Action.DROP) == []


def test_a_month_that_is_not_folded_is_kept() -> None:
    held = month("2026-01")
    (step,) = (
        step
        for step in planned(held, now="2026-05-01", watermark=at("2026-01-31T23:59:59")).steps
        if step.partition == held
    )
    assert (step.action, step.unfolded) == (Action.KEEP, True)
    assert "not folded: the watermark is 2026-01-31T23:59:59Z" in step.reason
    assert names(planned(held, now="2026-05-01", watermark=at("2026-02-01")), Action.DROP) == [held.name]


def test_no_retention_drops_nothing() -> None:
    old = Stray(at("2020-01-01"), 3, at("2020-01-05"), at("2020-01-09"))
    result = planned(month("2020-02"), now="2026-05-01", retention_days=0, strays=(old,))
    assert names(result, Action.DROP) == []
    assert "activity_events_y2020m01" in names(result, Action.CREATE)


def test_what_must_be_archived_first_is_kept_while_nothing_archives_it() -> None:
    held = month("2026-01")
    kept = planned(held, now="2026-05-01", archive_before_drop=True)
    assert names(kept, Action.DROP) == []
    assert any("not archived" in step.reason for step in kept.of(Action.KEEP))
    dropped = planned(held, now="2026-05-01", archive_before_drop=True, can_archive=True)
    assert names(dropped, Action.DROP) == [held.name]


def test_the_plan_says_what_a_month_lacks_before_it_can_go() -> None:
    archived, lacking, unfolded = month("2026-01"), month("2026-02"), month("2026-03")
    lacks = {part.name: "3 of its days are not in the training corpus" for part in (lacking, unfolded)}
    result = planned(
        *(archived, lacking, unfolded),
        now="2026-07-01",
        watermark=at("2026-03-05"),
        archive_before_drop=True,
        can_archive=True,
        unarchived=lacks,
    )
    said = {
        step.partition: (step.action, step.reason.partition("past retention")[2]) for step in result.steps
    }
    assert said[archived] == (Action.DROP, ", folded and archived")
    assert said[lacking] == (
        Action.DROP,
        f" and folded, to be archived first: {lacks[lacking.name]}",
    )
    assert said[unfolded] == (
        Action.KEEP,
        f", not folded: the watermark is 2026-03-05; not archived: {lacks[unfolded.name]}",
    )


def test_bounds_decide_and_not_names() -> None:
    misnamed = month("2026-05", name="activity_events_y2020m01")
    result = planned(misnamed, month("2020-01", name="kept"), now="2026-05-15", ahead=0)
    assert names(result, Action.CREATE) == []
    assert names(result, Action.DROP) == ["kept"]


def test_a_wide_partition_covers_its_months_and_goes_as_a_whole() -> None:
    quarter = Partition("quarter", at("2026-01-01"), at("2026-04-01"))
    assert names(planned(quarter, now="2026-02-10", ahead=2), Action.CREATE) == ["activity_events_y2026m04"]
    assert names(planned(quarter, now="2026-04-30T23:59"), Action.DROP) == []
    assert names(planned(quarter, now="2026-05-01"), Action.DROP) == ["quarter"]


def test_a_month_that_is_covered_in_part_gets_the_rest() -> None:
    middle = Partition("middle", at("2026-02-10"), at("2026-02-20"))
    made = planned(middle, now="2026-02-15").of(Action.CREATE)
    assert [(step.partition.name, step.partition.lower, step.partition.upper) for step in made] == [
        ("activity_events_y2026m02", at("2026-02-01"), at("2026-02-10")),
        ("activity_events_y2026m02_2", at("2026-02-20"), at("2026-03-01")),
    ]


def test_a_part_of_the_current_month_that_was_dropped_is_not_made_again() -> None:
    rest = Partition("rest", at("2026-02-10"), at("2026-03-01"))
    assert names(planned(rest, now="2026-02-25", retention_days=7), Action.CREATE) == []
    assert names(planned(rest, now="2026-02-16", retention_days=7), Action.CREATE) == [
        "activity_events_y2026m02"
    ]


def test_unbounded_partitions_cover_everything_and_the_endless_one_stays() -> None:
    past = Partition("past", None, at("2026-01-01"))
    future = Partition("future", at("2026-01-01"), None)
    result = planned(past, future, now="2026-06-01", ahead=12)
    assert names(result, Action.CREATE) == []
    assert names(result, Action.DROP) == ["past"]


def test_a_taken_name_gives_another_name_and_a_line_about_it() -> None:
    result = planned(now="2026-05-01", others={"activity_events_y2026m05": "a view"})
    (made,) = result.of(Action.CREATE)
    assert made.partition.name == "activity_events_y2026m05_2"
    assert "activity_events_y2026m05 is taken" in made.reason
    kept = [step for step in result.of(Action.KEEP) if step.partition.name == "activity_events_y2026m05"]
    assert [step.reason for step in kept] == ["a view, not a partition of activity_events: left alone"]


def test_strays_get_their_month_and_old_folded_ones_are_deleted() -> None:
    strays = (
        Stray(at("2026-01-01"), 5, at("2026-01-03"), at("2026-01-04")),  # past retention
        Stray(at("2026-04-01"), 7, at("2026-04-01"), at("2026-04-30")),  # in part
        Stray(at("2026-08-01"), 2, at("2026-08-03"), at("2026-08-04")),  # ahead of ahead
    )
    result = planned(now="2026-05-15", strays=strays)
    (delete,) = result.of(Action.DROP)
    assert (delete.partition, delete.before) == (DEFAULT, at("2026-04-15"))
    assert [(step.partition.name, step.rows) for step in result.of(Action.MOVE)] == [
        ("activity_events_y2026m08", 2),
        ("activity_events_y2026m04", 7),
    ]
    assert names(result, Action.CREATE) == [
        *("activity_events_y2026m05", "activity_events_y2026m08", "activity_events_y2026m04")
    ]


def test_old_strays_that_are_not_folded_are_moved_and_not_deleted() -> None:
    stray = Stray(at("2026-01-01"), 5, at("2026-01-03"), at("2026-01-04"))
    result = planned(now="2026-05-15", strays=(stray,), watermark=EPOCH)
    assert names(result, Action.DROP) == []
    assert names(result, Action.MOVE) == ["activity_events_y2026m01"]


def test_a_flood_of_stray_months_is_made_in_portions() -> None:
    months = itertools.accumulate(range(99), lambda start, _: next_month(start), initial=at("2027-01-01"))
    result = planned(now="2026-05-15", strays=tuple(Stray(start, 1, start, start) for start in months))
    assert len(names(result, Action.MOVE)) == MOST_STRAY_MONTHS
    assert any("rows of 100 months wait" in step.reason for step in result.of(Action.SKIP))


def test_an_interrupted_detach_and_a_missing_default_ask_for_an_operator() -> None:
    pending = Partition("half", at("2026-01-01"), at("2026-02-01"), detach_pending=True)
    result = plan(Catalog((pending,)), now=at("2026-05-01"), watermark=FAR, retention_days=30, ahead=0)
    assert [(step.partition.name, step.blocked) for step in result.of(Action.SKIP)] == [
        ("half", True),
        ("activity_events_default", True),
    ]


def test_a_time_outside_the_calendar_is_refused() -> None:
    for now in ("1969-12-31", "9000-01-01"):
        with pytest.raises(UsageError, match="between the years 1970 and 8999"):
            planned(now=now)


moments = st.timedeltas(timedelta(0), timedelta(days=11_000)).map(lambda span: at("2000-01-01") + span)


@given(
    cuts=st.lists(moments, max_size=8, unique=True),
    now=moments,
    watermark=moments,
    ahead=st.integers(0, 12),
    retention_days=st.integers(0, 400),
    taken=st.lists(moments.map(month_of).map(name_of), max_size=3),
)
def test_any_catalog_ends_covered_without_overlap_and_a_second_plan_does_nothing(
    cuts: list[datetime],
    now: datetime,
    watermark: datetime,
    ahead: int,
    retention_days: int,
    taken: list[str],
) -> None:
    edges = sorted(cuts)
    existing = tuple(
        Partition(f"p{number}", lower, upper)
        for number, (lower, upper) in enumerate(itertools.pairwise(edges))
        if number % 2 == 0
    )
    others = dict.fromkeys(taken, "a view")

    def planned_for(partitions: tuple[Partition, ...]) -> Plan:
        return plan(
            Catalog(partitions, DEFAULT, others=others),
            now=now,
            watermark=watermark,
            retention_days=retention_days,
            ahead=ahead,
        )

    first = planned_for(existing)
    dropped = {step.partition for step in first.of(Action.DROP)}
    after = tuple(
        part
        for part in (*existing, *(step.partition for step in first.of(Action.CREATE)))
        if part not in dropped
    )
    spans = sorted((part.lower, part.upper) for part in after if part.lower and part.upper)

    assert all(before[1] <= later[0] for before, later in itertools.pairwise(spans))
    assert not any(upper > now for month in hot_months(now, ahead) for _, upper in gaps(month, after))
    assert len({part.name for part in after} | set(others)) == len(after) + len(others)
    assert all(part.upper and part.upper <= min(watermark, now) for part in dropped)
    second = planned_for(after)
    assert not second.of(Action.CREATE)
    assert not second.of(Action.DROP)
