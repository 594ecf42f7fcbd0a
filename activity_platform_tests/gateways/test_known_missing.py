from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from redis.asyncio import Redis

from activity_platform.failures import TransientFailure
from activity_platform.gateways import queue
from activity_platform.gateways.known_missing import KnownMissing, forget_all_missing, forget_missing
from activity_platform.local.server import free_port
from activity_platform_tests.simulated_line import user_id

T = TypeVar("T")
A, B, C = (user_id(number) for number in (1, 2, 3))


def with_redis(redis_url: str, work: Callable[[Redis], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Redis.from_url(redis_url) as redis:
            return await work(redis)

    return asyncio.run(run())


def test_remembered_ids_are_known_to_their_oa_alone(redis_url: str) -> None:
    async def known(redis: Redis) -> list[set[str]]:
        await KnownMissing(redis, 1, hours=6).remember([A, B])
        return [await KnownMissing(redis, oa, hours=6).among([A, B, C]) for oa in (1, 2)]

    assert with_redis(redis_url, known) == [{A, B}, set()]


def test_ids_are_forgotten_on_demand(redis_url: str) -> None:
    async def remember(redis: Redis) -> None:
        await KnownMissing(redis, 1, hours=6).remember([A, B, C])
        await KnownMissing(redis, 11, hours=6).remember([A])

    async def known(redis: Redis) -> list[set[str]]:
        return [await KnownMissing(redis, oa, hours=6).among([A, B, C]) for oa in (1, 11)]

    with_redis(redis_url, remember)
    with queue.connect(redis_url) as client:
        assert [forget_missing(client, 1, A), forget_missing(client, 1, A)] == [1, 0]
        assert with_redis(redis_url, known) == [{B, C}, {A}]
        assert forget_all_missing(client, 1) == 2
    assert with_redis(redis_url, known) == [set(), {A}]


def test_an_id_is_forgotten_after_the_hours(redis_url: str) -> None:
    async def lifetimes(redis: Redis) -> list[int]:
        await KnownMissing(redis, 1, hours=0.5).remember([A, B])
        return [await redis.pttl(key) async for key in redis.scan_iter()]

    first, second = with_redis(redis_url, lifetimes)
    assert 1_790_000 < first <= 1_800_000
    assert 1_790_000 < second <= 1_800_000


def test_with_no_hours_nothing_is_remembered(redis_url: str) -> None:
    async def kept(redis: Redis) -> tuple[set[str], int]:
        await KnownMissing(redis, 1, hours=6).remember([A])
        forgetful = KnownMissing(redis, 1, hours=0)
        await forgetful.remember([B])
        return await forgetful.among([A, B]), await redis.dbsize()

    assert with_redis(redis_url, kept) == (set(), 1)


def test_a_redis_that_is_away_is_a_transient_failure() -> None:
    with pytest.raises(TransientFailure, match="Redis can't be reached"):
        with_redis(
            f"redis://127.0.0.1:{free_port()}", lambda redis: KnownMissing(redis, 1, hours=6).among([A])
        )
