"""Asking LINE for profiles, beside httpx's own client and beside the requests alone.

The simulator, Valkey and the asking process share the machine. The figure and the peer differ in the
client alone: both keep the channel's rate limit in Valkey, retry, and understand each answer. The limit sends
the same requests with aiohttp and only reads what comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Self

import aiohttp
import httpx
import redis.asyncio
import uvloop

from activity_platform.audience.profiles import Answers, FetchPolicy, fetch_profiles
from activity_platform.gateways.known_missing import KnownMissing
from activity_platform.gateways.line_api import CONNECTIONS, TIMEOUT, LineApi
from activity_platform.gateways.rate_limit import ChannelPermits, workers_of_a_run
from activity_platform.settings import Settings
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer, stack

PROFILES = 5_000
PEER_PROFILES = 1_000  # a few hundred a second
TIMES = 10
PROFILES_A_SECOND = 1_000
TOKEN = "channel-token"

FIGURE, HTTPX, REQUESTS = "fetch_profiles", "the same with httpx.AsyncClient", "aiohttp alone"


class HttpxApi(LineApi):
    """The API over httpx's own client, with as many connections."""

    async def __aenter__(self) -> Self:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._transport = httpx.AsyncHTTPTransport(limits=limits)
        self._client = httpx.AsyncClient(headers=self._headers, timeout=TIMEOUT, transport=self._transport)
        return self

    async def _send(self, url: str) -> httpx.Response:
        return await self._client.get(url)


def run(options: Options) -> Iterator[Comparison]:
    """Profiles a second."""
    profiles, fewer = options.size(PROFILES), max(1, options.size(PROFILES) // TIMES)
    with stack() as running:
        asking = Asking(Settings.load(running.environment))
        yield compare(
            "profiles",
            f"{profiles:,} ids, simulator in one process",
            "profiles/s",
            {
                FIGURE: asking.fetching(LineApi, profiles),
                HTTPX: asking.fetching(HttpxApi, options.size(PEER_PROFILES)),
                REQUESTS: asking.only_requests(profiles),
            },
            options,
            [peer(HTTPX, 2.0), limit(REQUESTS)],
            aim=PROFILES_A_SECOND,
        )
        less, more = f"{fewer:,} ids", f"{profiles:,} ids"
        yield compare(
            "profiles",
            f"{TIMES} times the ids",
            "profiles/s",
            {more: asking.fetching(LineApi, profiles), less: asking.fetching(LineApi, fewer)},
            options,
            [base(less, FLAT)],
        )


class Asking:
    """Requests for the profiles of ever new ids."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asked = 0

    def fetching(self, api: type[LineApi], count: int) -> Callable[[], float]:
        async def fetch() -> float:
            settings = self._settings
            client = redis.asyncio.Redis.from_url(settings.redis_url)
            async with client, api(settings.line_api_base_url, TOKEN) as line:
                started = time.perf_counter()
                counts = await fetch_profiles(
                    self._new_ids(count),
                    line=line,
                    permits=ChannelPermits(client, "1", settings.line_requests_per_second),
                    missing=KnownMissing(client, 1, settings.profile_fresh_hours),
                    keep=_forget,
                    policy=FetchPolicy(workers=workers_of_a_run(settings.line_requests_per_second)),
                )
                took = time.perf_counter() - started
            if counts.found != count:
                raise RuntimeError(f"{counts.found} of {count} profiles were found")
            return count / took

        return lambda: _run(fetch)

    def only_requests(self, count: int) -> Callable[[], float]:
        async def send() -> float:
            urls = iter(
                [f"{self._settings.line_api_base_url}/v2/bot/profile/{one}" for one in self._new_ids(count)]
            )

            async def some(session: aiohttp.ClientSession) -> None:
                for url in urls:
                    async with session.get(url) as answer:
                        await answer.read()

            connector = aiohttp.TCPConnector(limit=CONNECTIONS)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                started = time.perf_counter()
                await asyncio.gather(*(some(session) for _ in range(CONNECTIONS)))
                return count / (time.perf_counter() - started)

        return lambda: _run(send)

    def _new_ids(self, count: int) -> list[str]:
        first, self._asked = self._asked, self._asked + count
        return [f"U{number:032x}" for number in range(first, self._asked)]


async def _forget(_: Answers) -> None:
    """What is done with the profiles is not part of the comparison."""


def _run(work: Callable[[], Coroutine[None, None, float]]) -> float:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
