"""However messages are split, repeated or interrupted, the rows are those of one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activity_platform.gateways.queue import Queues
from activity_platform.last_activity import drain as drain_module
from activity_platform.last_activity import update as update_module
from activity_platform.last_activity.drain import DrainResult, drain_step
from activity_platform.last_activity.messages import EPOCH
from activity_platform.last_activity.periods import period_of
from activity_platform_tests.last_activity.conftest import NEVER, Row, World, counts, line_user_id, payload

START = datetime(2026, 1, 1, tzinfo=EPOCH.tzinfo)
Person: TypeAlias = tuple[int, int]
PEOPLE: tuple[Person, ...] = ((1, 1), (1, 2), (2, 1), (3, 1))  # number and OA
UNKNOWN: Person = (9, 1)
CRASHES = ("before the update", "after the update", "before the end", "after the end")


@dataclass(frozen=True)
class Message:
    """`late` messages keep the time of an entry far back, as replayed ones do."""

    number: int
    oa: int
    type: str
    status: str
    at: datetime

    def data(self) -> str:
        return json.dumps(payload(line_user_id(self.number), self.type, self.status, lineOaId=self.oa))


class Crash(Exception):
    """The process ends here."""


moments = st.builds(
    lambda days, microseconds: START + timedelta(days=days, microseconds=microseconds),
    st.sampled_from([0, 1, 2, 9, 10, 40, 41, 130, 300]),
    st.integers(0, 2),
)
messages = st.builds(
    lambda person, type_, status, at: Message(person[0], person[1], type_, status, at),
    st.sampled_from([*PEOPLE, UNKNOWN]),
    st.sampled_from(["message", "follow", "click"]),
    st.sampled_from(["active", "inactive"]),
    moments,
)
deliveries = st.lists(messages, min_size=1, max_size=30)
rows_before = st.fixed_dictionaries(
    {
        person: st.one_of(st.none(), moments.map(lambda at: ("old", "active", "first", at)))
        for person in PEOPLE
    }
)
crashes = st.lists(st.sampled_from([*CRASHES, None]), max_size=6)


def moves(delivered: Sequence[Message], before: dict[Person, Row | None]) -> list[tuple[Person, Row]]:
    """The rule itself: forward only, the four together, the gap to the activity before."""
    rows = {person: row or NEVER for person, row in before.items()}
    made = []
    for message in delivered:
        person = (message.number, message.oa)
        date = rows[person][3] if person in rows else message.at
        if date is None or date < message.at:
            gap = None if date is None else message.at - date
            rows[person] = (message.type, message.status, period_of(gap), message.at)
            made.append((person, rows[person]))
    return made


def one_by_one(delivered: Sequence[Message], before: dict[Person, Row | None]) -> dict[Person, Row]:
    return {person: row or NEVER for person, row in before.items()} | dict(moves(delivered, before))


def prepare(world: World, delivered: Sequence[Message], before: dict[Person, Row | None]) -> None:
    world.connection.execute("TRUNCATE line_user")
    world.queues.client.flushdb()
    for (number, oa), row in before.items():
        world.add(number, oa=oa, row=row or NEVER)
        if number == 2:
            world.cache(number, world.camel_copy(number))
        if number == 3:
            world.cache(number, world.camel_copy(number, id=10**6))
    for message in delivered:
        milliseconds, rest = divmod(message.at - EPOCH, timedelta(milliseconds=1))
        world.queue(message.data(), original_id=f"{milliseconds}-{rest.microseconds}")


def work(world: World, worker: psycopg.Connection, size: int, plan: Sequence[str | None]) -> DrainResult:
    """Drains in steps of that size. Steps for which the plan holds a crash end in it."""
    total = DrainResult()
    pending = list(plan)
    while world.waiting():
        try:
            with pytest.MonkeyPatch.context() as patch:
                arm(patch, pending.pop(0) if pending else None)
                total = drain_module._sum(total, drain_step(worker, world.queues, size))
        except Crash:
            pass
    return total


def arm(patch: pytest.MonkeyPatch, crash: str | None) -> None:
    real_end = drain_module._end

    def update(*arguments: Any) -> Any:
        if crash == "before the update":
            raise Crash
        outcome = update_module.update(*arguments)
        if crash == "after the update":
            raise Crash
        return outcome

    def end(queues: Queues, *arguments: Any) -> None:
        if crash == "before the end":
            raise Crash
        real_end(queues, *arguments)
        if crash == "after the end":
            raise Crash

    patch.setattr(drain_module, "update", update)
    patch.setattr(drain_module, "_end", end)


def check(
    world: World,
    worker: psycopg.Connection,
    delivered: Sequence[Message],
    before: dict[Person, Row | None],
    size: int,
    plan: Sequence[str | None],
) -> None:
    prepare(world, delivered, before)
    result = work(world, worker, size, plan)
    expected = one_by_one(delivered, before)
    assert {(number, oa): world.row(number, oa) for number, oa in PEOPLE} == expected
    assert world.dead() == []
    if not any(plan):
        assert result.read == len(delivered) == sum(counts(result)[1:])
        assert result.updated == len(moves(delivered, before))
    if any((message.number, message.oa) == (2, 1) for message in delivered):
        assert world.cached(2)["lastActivityPeriod"] == expected[2, 1][2]


@pytest.fixture
def worker(database_url: str) -> Iterator[psycopg.Connection]:
    with update_module.connect(database_url) as worker:
        yield worker


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@given(deliveries, rows_before, st.integers(1, 31), crashes)
@examples(120)
def test_batches_and_crashes_change_no_row(
    world: World,
    worker: psycopg.Connection,
    delivered: list[Message],
    before: dict[Person, Row | None],
    size: int,
    plan: list[str | None],
) -> None:
    check(world, worker, delivered, before, size, plan)


@pytest.mark.heavy
@given(deliveries, rows_before, st.integers(1, 31), crashes)
@examples(3_000)
def test_thousands_of_batches_and_crashes_change_no_row(
    world: World,
    worker: psycopg.Connection,
    delivered: list[Message],
    before: dict[Person, Row | None],
    size: int,
    plan: list[str | None],
) -> None:
    check(world, worker, delivered, before, size, plan)
