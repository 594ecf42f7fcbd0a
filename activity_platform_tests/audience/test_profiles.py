"""What becomes of ids when LINE is asked for them. The cases S12–S16 are named after what the field saw."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from activity_platform.audience.profiles import (
    Answers,
    FetchCounts,
    FetchPolicy,
    ProfileFetcher,
    fetch_profiles,
)
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways.known_missing import KnownMissing
from activity_platform.gateways.line_api import (
    LineApi,
    MonthlyLimit,
    NotFound,
    Profile,
    Unauthorized,
    Unavailable,
)
from activity_platform.gateways.rate_limit import ChannelPermits
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack
from activity_platform_tests.simulated_line import TOKEN, SimulatedLine, user_id, user_ids

HASTY = FetchPolicy(first_wait=0.01, jitter=0.01)
A, B, C = user_ids(3)


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


class Stopped(Exception):
    """The caller's own failure."""


@dataclass
class Fetch:
    """One import's part of fetching, as its caller sees it."""

    line: SimulatedLine
    redis_url: str
    hours: float = 6
    pause: float = 0.2
    kept: list[Answers] = field(default_factory=list)

    def __call__(
        self,
        ids: Iterable[str],
        policy: FetchPolicy = HASTY,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        keep: Callable[[Answers], Awaitable[None]] | None = None,
        line: ProfileFetcher | None = None,
    ) -> FetchCounts:
        async def run() -> FetchCounts:
            async with LineApi(self.line.base_url, TOKEN) as api, Redis.from_url(self.redis_url) as redis:
                return await fetch_profiles(
                    ids,
                    line=line or api,
                    permits=ChannelPermits(redis, "1", 2000, pause_seconds=self.pause),
                    missing=KnownMissing(redis, 1, self.hours),
                    keep=keep or self.keep,
                    policy=policy,
                    sleep=sleep,
                )

        return asyncio.run(run())

    async def keep(self, answers: Answers) -> None:
        self.kept.append(answers)

    @property
    def found(self) -> list[str]:
        return sorted(profile.user_id for answers in self.kept for profile in answers.found)

    @property
    def not_found(self) -> list[str]:
        return sorted(name for answers in self.kept for name in answers.not_found)

    @property
    def unresolved(self) -> list[str]:
        return sorted(name for answers in self.kept for name in answers.unresolved)


@pytest.fixture
def fetch(line: SimulatedLine, redis_url: str) -> Fetch:
    return Fetch(line, redis_url)


def test_no_ids_ask_nothing(line: SimulatedLine, fetch: Fetch) -> None:
    assert fetch([]) == FetchCounts()
    assert fetch.kept == []
    assert line.log()["requests"] == 0


def test_each_id_is_asked_for_once_and_handed_on_once(line: SimulatedLine, fetch: Fetch) -> None:
    ids = user_ids(1_234)
    assert fetch(ids) == FetchCounts(found=1_234)
    assert fetch.found == sorted(ids)
    assert line.log()["ids"] == dict.fromkeys(ids, 1)
    assert max(len(answers) for answers in fetch.kept) <= HASTY.chunk


def test_s12_404_and_400_are_not_found_and_not_asked_again(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("not_found", ids=[B])
    line.answer("invalid_id", ids=[C])
    assert fetch([A, B, C]) == FetchCounts(found=1, not_found=2)
    assert (fetch.found, fetch.not_found) == ([A], [B, C])
    assert line.log()["ids"] == {A: 1, B: 1, C: 1}


def test_an_id_that_was_not_found_lately_is_not_asked_for_in_the_next_import(
    line: SimulatedLine, fetch: Fetch
) -> None:
    line.answer("not_found", ids=[B])
    fetch([A, B])
    fetch.kept.clear()
    assert fetch([A, B]) == FetchCounts(found=1, not_found=1, recalled=1)
    assert (fetch.found, fetch.not_found) == ([A], [B])
    assert line.log()["ids"] == {A: 2, B: 1}


def test_s13_a_burst_of_429_slows_the_channel_and_loses_no_one(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("rate_limit", times=30)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(seconds)

    assert fetch(user_ids(200), FetchPolicy(), sleep=sleep) == FetchCounts(found=200)
    log = line.log()
    assert log["requests"] == 230
    assert max(log["ids"].values()) <= FetchPolicy().attempts
    assert len(waits) == len(set(waits)) == 30
    assert all(0.5 <= wait <= 1.5 for wait in waits)
    moments = [moment for moment, _, _ in log["recent"]]
    pause = max(later - earlier for earlier, later in itertools.pairwise(moments))
    assert pause >= 0.18  # not only the refused ids waited: nobody asked


def test_s13_429_without_end_leaves_ids_unresolved_after_bounded_attempts(
    line: SimulatedLine, fetch: Fetch
) -> None:
    line.answer({"status": 429, "body": {"message": "Slow down"}, "headers": {"Retry-After": "0"}})
    counts = fetch(user_ids(20), FetchPolicy(attempts=3, first_wait=0.01, jitter=0.01))
    assert (counts.found, counts.not_found, counts.unresolved) == (0, 0, 20)
    assert set(line.log()["ids"].values()) == {3}


def test_s14_slow_answers_are_waited_for_with_bounded_requests_under_way(
    line: SimulatedLine, fetch: Fetch
) -> None:
    line.answer("profile", delay_seconds=0.3)
    policy = FetchPolicy(workers=60)
    assert fetch(user_ids(240), policy) == FetchCounts(found=240)
    assert line.log()["max_in_flight"] == 60


@pytest.mark.heavy
def test_s14_fifteen_hundred_ids_at_0_8_seconds_each_are_all_found(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("profile", delay_seconds=0.8)
    assert fetch(user_ids(1_500), FetchPolicy()) == FetchCounts(found=1_500)
    assert line.log()["max_in_flight"] <= FetchPolicy().workers


def test_tasks_are_bounded_however_many_the_ids(fetch: Fetch) -> None:
    tasks: list[int] = []

    async def keep(answers: Answers) -> None:
        tasks.append(len(asyncio.all_tasks()))

    policy = FetchPolicy(workers=20, chunk=200)
    assert fetch(user_ids(3_000), policy, keep=keep).found == 3_000
    assert max(tasks) <= 20 + 10  # the workers, and a few that start them, keep, or open connections


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("unauthorized", Unauthorized), ("forbidden", Unauthorized), ("monthly_limit", MonthlyLimit)],
)
def test_s15_a_refusal_stops_everything_and_marks_no_one(
    line: SimulatedLine, fetch: Fetch, answer: str, kind: type[PermanentFailure]
) -> None:
    line.answer(answer, after=40)
    with pytest.raises(kind):
        fetch(user_ids(100), FetchPolicy(workers=8))
    assert line.log()["requests"] <= 40 + 8
    assert 40 - 8 <= len(fetch.found) <= 40
    assert fetch.not_found == fetch.unresolved == []


def test_s15_a_refusal_does_not_wait_for_ids_that_wait(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("server_error", ids=user_ids(10))
    line.answer("unauthorized", after=20)
    started = time.monotonic()
    with pytest.raises(Unauthorized):
        fetch(user_ids(100), FetchPolicy(first_wait=30, longest_wait=60))
    assert time.monotonic() - started < 5


def test_s16_absent_fields_are_told_as_absent(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer({"profile": {"displayName": "X"}})
    fetch([A])
    assert fetch.kept == [Answers(found=(Profile(A, "X", None, None, None),))]


@pytest.mark.parametrize("fault", ["server_error", "html", "no_display_name", "drop", "cut"])
def test_a_passing_fault_loses_no_one(line: SimulatedLine, fetch: Fetch, fault: str) -> None:
    line.answer(fault, times=15)
    assert fetch(user_ids(40)) == FetchCounts(found=40)
    assert line.log()["requests"] == 55


def test_a_fault_that_stays_with_one_id_leaves_only_that_one_unresolved(
    line: SimulatedLine, fetch: Fetch
) -> None:
    line.answer("server_error", ids=[B])
    counts = fetch([A, B, C])
    assert (counts.found, counts.unresolved, counts.gave_up) == (2, 1, False)
    assert (fetch.found, fetch.unresolved) == ([A, C], [B])
    assert line.log()["ids"] == {A: 1, B: HASTY.attempts, C: 1}
    assert counts.failure is not None
    assert counts.failure.startswith("LINE answered 500 about U0000…; X-Line-Request-Id ")


def test_an_outage_ends_soon_with_everyone_unresolved(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("server_error")
    policy = FetchPolicy(workers=10, attempts=2, first_wait=0.01, jitter=0.01, patience=30)
    counts = fetch(user_ids(5_000), policy)
    assert (counts.unresolved, counts.gave_up) == (5_000, True)
    assert fetch.unresolved == sorted(user_ids(5_000))
    assert line.log()["requests"] <= (30 + 10) * 2


def test_an_answer_now_and_then_renews_the_patience(line: SimulatedLine, fetch: Fetch) -> None:
    answered = user_ids(100)[::10]
    line.answer("profile", ids=answered)
    line.answer("server_error")
    policy = FetchPolicy(workers=1, attempts=1, patience=15)
    counts = fetch(user_ids(100), policy)
    assert (counts.found, counts.unresolved, counts.gave_up) == (10, 90, False)


def test_a_failing_caller_ends_the_asking_and_loses_at_most_a_chunk(
    line: SimulatedLine, fetch: Fetch
) -> None:
    policy = FetchPolicy(workers=20, chunk=100)

    async def keep(answers: Answers) -> None:
        await asyncio.sleep(0.1)  # asking goes on while answers are kept
        if len(fetch.kept) == 3:
            raise Stopped
        await fetch.keep(answers)

    with pytest.raises(Stopped):
        fetch(user_ids(2_000), policy, keep=keep)
    time.sleep(0.3)  # what was under way has arrived by now
    asked = line.log()["requests"]
    time.sleep(0.3)
    assert line.log()["requests"] == asked
    assert len(fetch.found) < asked <= len(fetch.found) + policy.chunk


def test_a_swallowed_cancellation_does_not_keep_the_asking_from_ending(
    line: SimulatedLine, fetch: Fetch
) -> None:
    class Swallows:
        """Takes a cancellation for a failure of its own, as a transport may."""

        async def get_profile(self, user_id: str) -> Profile | NotFound:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError as error:
                raise Unavailable("no answer from LINE (CancelledError)") from error
            return NotFound(user_id, 404, None)

    async def keep(_: Answers) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        fetch(user_ids(200), FetchPolicy(workers=20, chunk=40, first_wait=0.01), keep=keep, line=Swallows())


def test_answers_are_handed_on_every_so_often_even_if_they_are_few(line: SimulatedLine, fetch: Fetch) -> None:
    line.answer("profile", delay_seconds=0.2)
    fetch(user_ids(6), FetchPolicy(workers=1, chunk_seconds=0.5))
    assert len(fetch.kept) >= 2


def test_a_redis_that_is_away_ends_the_run_and_marks_no_one(line: SimulatedLine) -> None:
    # The missing ids are switched off, so that it is the permits that fail, in the middle of the workers.
    fetch = Fetch(line, f"redis://127.0.0.1:{free_port()}", hours=0)
    with pytest.raises(TransientFailure, match="Redis can't be reached"):
        fetch(user_ids(10))
    assert fetch.kept == []
    assert line.log()["requests"] == 0


def test_what_is_asked_is_a_plain_get_with_the_token(line: SimulatedLine, fetch: Fetch) -> None:
    fetch(user_ids(5))
    assert Counter(token for _, _, token in line.log()["recent"]) == {TOKEN: 5}


async def _with_httpx_alone(line: SimulatedLine, ids: list[str], workers: int) -> None:
    remaining = iter(ids)

    async def work(client: httpx.AsyncClient) -> None:
        for name in remaining:
            (await client.get(f"{line.base_url}/v2/bot/profile/{name}")).json()

    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=workers, max_keepalive_connections=workers)
    async with httpx.AsyncClient(headers=headers, limits=limits) as client:
        await asyncio.gather(*(work(client) for _ in range(workers)))


@pytest.mark.heavy
def test_profiles_come_twice_as_fast_as_httpx_alone_gets_them_and_never_above_the_limit(
    line: SimulatedLine, fetch: Fetch
) -> None:
    def per_second(count: int, work: Callable[[list[str]], Any]) -> float:
        started = time.perf_counter()
        work([user_id(number) for number in range(count)])
        return count / (time.perf_counter() - started)

    workers = FetchPolicy().workers
    ours = per_second(15_000, fetch)
    theirs = per_second(2_000, lambda ids: asyncio.run(_with_httpx_alone(line, ids, workers)))
    assert ours >= 2 * theirs
    assert line.log()["tokens"][TOKEN]["max_per_second"] <= 2_000
