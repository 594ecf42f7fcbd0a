from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

from activity_platform.audience.profiles import FetchPolicy
from activity_platform.failures import TransientFailure
from activity_platform.gateways.line_api import LineApi
from activity_platform.gateways.rate_limit import (
    MAX_AGE_SECONDS,
    RECOVERY_SECONDS,
    TRANSIT_SECONDS,
    ChannelPermits,
    interval_microseconds,
    most_in_flight,
    workers_of_a_run,
)
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack
from activity_platform_tests.simulated_line import TOKEN, SimulatedLine, user_id

T = TypeVar("T")


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


def with_redis(redis_url: str, work: Callable[[Redis], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Redis.from_url(redis_url) as redis:
            return await work(redis)

    return asyncio.run(run())


async def permits_taken(permits: ChannelPermits, seconds: float, tasks: int = 20) -> list[float]:
    """The moments at which `tasks` tasks that want permits all the time got them."""
    moments: list[float] = []
    until = time.monotonic() + seconds

    async def want() -> None:
        while True:
            await permits.take()
            if (now := time.monotonic()) > until:
                return
            moments.append(now)

    await asyncio.gather(*(want() for _ in range(tasks)))
    return sorted(moments)


def most_within(moments: list[float], seconds: float) -> int:
    first = most = 0
    for last, moment in enumerate(moments):
        while moments[first] <= moment - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.parametrize("per_second", [1, 2, 7, 60, 999, 2000, 1_000_000])
def test_the_span_that_a_second_s_arrivals_come_from_holds_no_more_than_the_limit(per_second: int) -> None:
    interval = interval_microseconds(per_second)
    places = int(1.15 * 1_000_000) // interval + 1  # a closed span of 1.15 s that begins on a place
    assert places <= per_second
    assert places >= per_second * 0.99 - 1 or per_second > 100_000


def test_requests_that_may_be_under_way_fit_beside_a_second_s_permits() -> None:
    assert most_in_flight(2000) == 156
    assert workers_of_a_run(2000) == FetchPolicy().workers == 78
    assert most_in_flight(1) == workers_of_a_run(1) == 1


def test_two_takers_of_a_channel_stay_below_the_limit_even_if_the_way_takes_longer_now_and_then(
    redis_url: str,
) -> None:
    async def take(redis: Redis) -> list[list[float]]:
        async with Redis.from_url(redis_url) as another:
            takers = [ChannelPermits(client, "1", 400) for client in (redis, another)]
            return await asyncio.gather(*(permits_taken(taker, 2.5) for taker in takers))

    one, other = with_redis(redis_url, take)
    # All within a second and the longest allowed way could arrive within one second.
    assert most_within(sorted(one + other), 1 + TRANSIT_SECONDS) <= 400
    assert len(one) + len(other) >= 0.8 * 2.5 * 400
    assert min(len(one), len(other)) >= 0.3 * (len(one) + len(other))


def test_a_process_that_stalls_does_not_catch_up_on_its_permits(redis_url: str) -> None:
    async def take(redis: Redis) -> list[float]:
        async def stall() -> None:
            for _ in range(5):
                await asyncio.sleep(0.15)
                time.sleep(2 * MAX_AGE_SECONDS)  # the stall is the point

        moments, _ = await asyncio.gather(permits_taken(ChannelPermits(redis, "1", 1000), 2), stall())
        return moments

    moments = with_redis(redis_url, take)
    assert most_within(moments, 1 + TRANSIT_SECONDS) <= 1000
    assert most_within(moments, 0.05) <= 0.05 * 1000 + 12  # and no burst follows a stall


def test_a_permit_that_is_too_old_is_not_used(redis_url: str) -> None:
    async def reserved_until(redis: Redis) -> list[int]:
        lateness = [0.0]
        permits = ChannelPermits(redis, "1", 2000, clock=lambda: time.monotonic() + lateness[0])
        places: list[int] = []
        # The first reservation is of two permits, the second of four; one of these is left to be late.
        for late in (0, 0, 0, 0, 0, MAX_AGE_SECONDS):
            lateness[0] = late
            await permits.take()
            places.append(int(await redis.hget("line_rate:1", "next") or 0))
        return places

    first, second, third, fourth, fifth, late = with_redis(redis_url, reserved_until)
    assert first == second < third == fourth == fifth < late


def test_channels_do_not_share_their_limit(redis_url: str) -> None:
    async def take(redis: Redis) -> list[list[float]]:
        return await asyncio.gather(
            *(permits_taken(ChannelPermits(redis, channel, 100), 1) for channel in ("1", "2"))
        )

    assert all(len(moments) >= 75 for moments in with_redis(redis_url, take))


def test_a_refusal_pauses_and_slows_everybody_on_the_channel(redis_url: str) -> None:
    async def take(redis: Redis) -> tuple[float, list[float], list[float]]:
        asker, other = ChannelPermits(redis, "1", 400), ChannelPermits(redis, "1", 400)
        await permits_taken(other, 0.2)
        for _ in range(30):  # all the requests under way are refused: that counts once
            await asker.slow_down(0.5)
        refused = time.monotonic()
        slowed = await permits_taken(other, 1.5)
        await redis.hincrby("line_rate:1", "paused_until", int(-2 * RECOVERY_SECONDS * 1_000_000))
        return refused, slowed, await permits_taken(other, 1)

    refused, slowed, recovered = with_redis(redis_url, take)
    assert slowed[0] - refused >= 0.49
    assert 140 <= len(slowed) <= 205  # one second at half of 348 a second, a little faster by the end
    assert len(recovered) >= 300


def test_the_pause_that_line_asks_for_is_kept_up_to_a_minute(redis_url: str) -> None:
    async def paused_for(redis: Redis) -> float:
        await ChannelPermits(redis, "1", 100).slow_down(86_400)
        waits: list[float] = []

        async def wait(seconds: float) -> None:
            waits.append(seconds)

        await ChannelPermits(redis, "1", 100, sleep=wait).take()
        return waits[0]

    assert 59 < with_redis(redis_url, paused_for) <= 60


def test_a_clock_that_was_set_back_does_not_stop_the_channel(redis_url: str) -> None:
    async def waited(redis: Redis) -> float:
        await redis.hset("line_rate:1", mapping={"next": int((time.time() + 3600) * 1_000_000)})
        started = time.monotonic()
        await ChannelPermits(redis, "1", 100).take()
        return time.monotonic() - started

    assert with_redis(redis_url, waited) < 0.5


def test_an_idle_channel_leaves_nothing_behind(redis_url: str) -> None:
    async def lifetime(redis: Redis) -> int:
        await ChannelPermits(redis, "1", 100).take()
        return int(await redis.ttl("line_rate:1"))

    assert 0 < with_redis(redis_url, lifetime) <= 600


def test_a_redis_that_is_away_is_a_transient_failure() -> None:
    with pytest.raises(TransientFailure, match="Redis can't be reached"):
        with_redis(f"redis://127.0.0.1:{free_port()}", lambda redis: ChannelPermits(redis, "1", 100).take())


def test_a_redis_that_is_too_slow_to_keep_time_with_is_a_transient_failure(redis_url: str) -> None:
    # Each reading of the clock comes a second after the one before: every permit is too old when it is there.
    async def take(redis: Redis) -> None:
        ticks = iter(range(1_000_000))
        await ChannelPermits(redis, "1", 1_000_000, clock=lambda: float(next(ticks))).take()

    with pytest.raises(TransientFailure, match="too slowly"):
        with_redis(redis_url, take)


async def ask_without_pause(
    base_url: str, redis_url: str, first: int, per_second: int, seconds: float
) -> None:
    """Sends as many requests as it gets permits for."""
    numbers = iter(range(first, first + 1_000_000))
    until = time.monotonic() + seconds

    async def work(api: LineApi, permits: ChannelPermits) -> None:
        while time.monotonic() < until:
            await permits.take()
            await api.get_profile(user_id(next(numbers)))

    async with LineApi(base_url, TOKEN) as api, Redis.from_url(redis_url) as redis:
        permits = ChannelPermits(redis, "1", per_second)
        await asyncio.gather(*(work(api, permits) for _ in range(workers_of_a_run(per_second))))


def ask_as_a_process(*arguments: Any) -> None:
    asyncio.run(ask_without_pause(*arguments))


def test_two_askers_on_one_channel_never_exceed_its_limit_as_line_counts(
    line: SimulatedLine, redis_url: str
) -> None:
    async def ask() -> None:
        await asyncio.gather(
            *(ask_without_pause(line.base_url, redis_url, number * 10_000_000, 300, 2.5) for number in (1, 2))
        )

    asyncio.run(ask())
    counts = line.log()["tokens"][TOKEN]
    assert counts["max_per_second"] <= 300
    assert counts["requests"] >= 500


@pytest.mark.heavy
@pytest.mark.parametrize(("per_second", "at_least"), [(2000, 800), (500, 350), (50, 35)])
def test_two_processes_on_one_channel_never_exceed_its_limit_as_line_counts(
    line: SimulatedLine, redis_url: str, per_second: int, at_least: int
) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=ask_as_a_process,
            args=(line.base_url, redis_url, number * 10_000_000, per_second, 15),
        )
        for number in (1, 2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    counts = line.log()["tokens"][TOKEN]
    assert counts["max_per_second"] <= per_second
    assert counts["requests"] >= 15 * at_least
