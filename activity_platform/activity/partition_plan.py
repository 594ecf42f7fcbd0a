"""What the log's partitions should become, decided from what there is. No I/O, no clock.

    catalog, now, watermark, settings   →   a line a partition, and the steps that change something

Bounds come from the catalog and are instants in UTC; a name says nothing about what a partition holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from activity_platform.failures import UsageError

PARENT = "activity_events"
#: A month that holds stray rows of DEFAULT gets its partition. More than so many at once point to a broken
#: clock somewhere, and that many partitions would slow every query.
MOST_STRAY_MONTHS = 60
YEARS = range(1970, 9000)
NOTHING: Mapping[str, str] = {}
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Action(StrEnum):
    """What is done to a partition."""

    CREATE = "create"
    MOVE = "move"
    DROP = "drop"
    KEEP = "keep"
    SKIP = "skip"


@dataclass(frozen=True)
class Partition:
    """A range partition: rows from `lower` (inclusive) to `upper` (exclusive); None is unbounded."""

    name: str
    lower: datetime | None
    upper: datetime | None
    schema: str = "public"
    detach_pending: bool = False


@dataclass(frozen=True)
class Stray:
    """Rows of DEFAULT in one UTC month: how many, the first and the last of their stamps."""

    month: datetime
    rows: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class Catalog:
    """What there is. `others` are relations that look like months of the log and are none: name → what."""

    partitions: tuple[Partition, ...] = ()
    default: Partition | None = None
    strays: tuple[Stray, ...] = ()
    unplaceable_rows: int = 0  # in DEFAULT, stamped with infinity or outside the calendar
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One line of a plan. `blocked` marks what ought to be done and can't be: an operator has to look.

    - create: a partition from `lower` to `upper`; a move step of the same partition may follow
    - move: rows of DEFAULT in that span go into it, in the transaction that creates it
    - drop: the partition, or with `before` the rows of DEFAULT stamped earlier than that
    """

    action: Action
    partition: Partition
    reason: str
    rows: int = 0
    before: datetime | None = None
    unfolded: bool = False
    blocked: bool = False


@dataclass(frozen=True)
class Plan:
    """The steps in the order in which they are done, and what stays as it is."""

    steps: tuple[Step, ...]
    default: Partition | None = None

    def of(self, action: Action) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action is action)


def plan(
    catalog: Catalog,
    *,
    now: datetime,
    watermark: datetime,
    retention_days: int,
    ahead: int,
    archive_before_drop: bool = False,
    can_archive: bool = False,
    unarchived: Mapping[str, str] = NOTHING,
) -> Plan:
    """The plan for `now`. Everything at or below `watermark` is folded.

    The current month and `ahead` more are there, with every month that has rows in DEFAULT. What lies wholly
    before now − retention (days of 24 hours) is dropped once it is folded; 0 days drop nothing. With
    `archive_before_drop` nothing is dropped unless something `can_archive` it first; `unarchived` says by
    name what is not archived yet. Raises `UsageError` for a `now` outside the calendar that it can count in.
    """
    cut = _cut(now, retention_days)
    # DEFAULT is no month that could be archived: its rows go to their months first.
    strays_cut = FIRST if archive_before_drop else cut
    judge = _Judge(cut, watermark, now, archive_before_drop, can_archive, unarchived)
    return Plan(
        (
            *_expire_strays(catalog, strays_cut, watermark),
            *_provide(catalog, hot_months(now, ahead), cut, strays_cut, watermark),
            *(judge.judge(part) for part in catalog.partitions),
            *_rest(catalog),
        ),
        catalog.default,
    )


def past_retention(catalog: Catalog, *, now: datetime, retention_days: int) -> list[Partition]:
    """The partitions that retention lets go. Raises `UsageError` as `plan` does."""
    cut = _cut(now, retention_days)
    return [
        part for part in catalog.partitions if part.upper and part.upper <= cut and not part.detach_pending
    ]


def _cut(now: datetime, retention_days: int) -> datetime:
    if now.year not in YEARS:
        raise UsageError(f"--now must lie between the years {YEARS.start} and {YEARS.stop - 1}")
    return now - timedelta(days=retention_days) if retention_days else FIRST


def month_of(moment: datetime) -> datetime:
    """The start of its month in UTC."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(month: datetime) -> datetime:
    """The start of the month after the one that starts at `month`."""
    return month_of(month + timedelta(days=31))


def name_of(month: datetime) -> str:
    """`activity_events_y2026m11`."""
    return f"{PARENT}_y{month.year:04}m{month.month:02}"


def hot_months(now: datetime, ahead: int) -> list[datetime]:
    """The month of `now` and `ahead` more."""
    return list(itertools.accumulate(range(ahead), lambda month, _: next_month(month), initial=month_of(now)))


def gaps(month: datetime, partitions: Iterable[Partition]) -> Iterator[tuple[datetime, datetime]]:
    """The parts of the month that no partition covers, in order."""
    start, end = month, next_month(month)
    covered = sorted((part.lower or FIRST, part.upper or LAST) for part in partitions)
    for lower, upper in covered:
        if lower >= end:
            break
        if lower > start:
            yield start, lower
        start = max(start, upper)
    if start < end:
        yield start, end


def _expire_strays(catalog: Catalog, cut: datetime, watermark: datetime) -> Iterator[Step]:
    old = [stray for stray in catalog.strays if stray.first < cut and stray.first <= watermark]
    if catalog.default and old:
        yield Step(
            Action.DROP,
            catalog.default,
            f"rows stamped before {_text(cut)} are past retention and folded: they are deleted",
            before=cut,
        )


def _provide(
    catalog: Catalog, hot: list[datetime], cut: datetime, strays_cut: datetime, watermark: datetime
) -> Iterator[Step]:
    staying = {
        stray.month: stray.rows
        for stray in catalog.strays
        if not (stray.last < strays_cut and stray.last <= watermark)
    }
    stray_months = sorted(set(staying) - set(hot), reverse=True)
    names = {*catalog.others, *(part.name for part in catalog.partitions)}
    for month in (*hot, *stray_months[:MOST_STRAY_MONTHS]):
        wanted = "wanted from now on" if month in hot else "rows of it wait in DEFAULT"
        for lower, upper in gaps(month, catalog.partitions):
            if upper <= cut and month not in staying:
                continue  # nothing is there, nor will be; it would be dropped at once
            name = _free_name(month, names)
            names.add(name)
            called = "" if name == name_of(month) else f"; {name_of(month)} is taken"
            partition = Partition(name, lower, upper, catalog.default.schema if catalog.default else "public")
            yield Step(Action.CREATE, partition, f"{_span(partition)}, {wanted}{called}")
            if month in staying:
                rows = staying[month]
                yield Step(Action.MOVE, partition, f"{rows} rows of the month wait in DEFAULT", rows=rows)
    if len(stray_months) > MOST_STRAY_MONTHS and catalog.default:
        yield Step(
            Action.SKIP,
            catalog.default,
            f"rows of {len(stray_months)} months wait here; {MOST_STRAY_MONTHS} months are made at a time",
        )


def _free_name(month: datetime, taken: Set[str]) -> str:
    names = itertools.chain([name_of(month)], (f"{name_of(month)}_{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken)


@dataclass(frozen=True)
class _Judge:
    """Which partitions go."""

    cut: datetime
    watermark: datetime
    now: datetime
    archives: bool
    can_archive: bool
    unarchived: Mapping[str, str]

    def judge(self, part: Partition) -> Step:
        if part.detach_pending:
            reason = f"a detach was interrupted: ALTER TABLE {PARENT} DETACH PARTITION … FINALIZE ends it"
            return Step(Action.SKIP, part, reason, blocked=True)
        if part.upper is None or part.upper > self.cut:
            return Step(Action.KEEP, part, f"{_span(part)}, {_why_kept(part, self.now)}")
        past = f"{_span(part)}, past retention"
        lacks = self.unarchived.get(part.name, "")
        if part.upper > self.watermark:
            reason = f"{past}, not folded: the watermark is {_text(self.watermark)}"
            also = f"; not archived: {lacks}" if lacks else ""
            return Step(Action.KEEP, part, reason + also, unfolded=True)
        if not self.archives:
            return Step(Action.DROP, part, f"{past} and folded")
        if not self.can_archive:
            return Step(Action.KEEP, part, f"{past}, not archived: ARCHIVE_BEFORE_DROP is on")
        if lacks:
            return Step(Action.DROP, part, f"{past} and folded, to be archived first: {lacks}")
        return Step(Action.DROP, part, f"{past}, folded and archived")


def _why_kept(part: Partition, now: datetime) -> str:
    if part.lower is not None and part.lower > now:
        return "ahead"
    return "current" if part.upper is None or part.upper > now else "within retention"


def _rest(catalog: Catalog) -> Iterator[Step]:
    if catalog.default is None:
        missing = Partition(f"{PARENT}_default", None, None)
        yield Step(
            Action.SKIP,
            missing,
            f"{PARENT} has no DEFAULT partition: create it, or inserts fail",
            blocked=True,
        )
    else:
        yield Step(Action.KEEP, catalog.default, _default_holds(catalog))
    for name, what in sorted(catalog.others.items()):
        yield Step(
            Action.KEEP, Partition(name, None, None), f"{what}, not a partition of {PARENT}: left alone"
        )


def _default_holds(catalog: Catalog) -> str:
    if catalog.unplaceable_rows:
        return f"takes what no month does; {catalog.unplaceable_rows} rows have a time outside the calendar"
    return "takes what no month does"


def _span(part: Partition) -> str:
    lower = _text(part.lower) if part.lower else "the beginning"
    upper = _text(part.upper) if part.upper else "the end"
    return f"{lower} to {upper}"


def _text(moment: datetime) -> str:
    short = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return short.removesuffix("T00:00:00Z")
