"""The rate limit of a LINE channel, kept in Redis and shared by every process that asks for the channel.

Permits are places in time: a channel's permits lie one interval apart on the clock of the Redis server, and a
process reserves the next few with one call, waits for the first one's time and then sends. Nothing is counted
and nothing polled; the state of a channel is one small hash.

Why no second ever holds more than `per_second` requests
    LINE counts arrivals, so what matters is how far an arrival may lie from its permit's place:
    - earlier by `BLOCK_SECONDS`, since the permits of one reservation are usable together,
    - later by `MAX_AGE_SECONDS`, after which a permit is thrown away unused,
    - later by the time on the way, for which `TRANSIT_SECONDS` are allowed.
    Arrivals within one second therefore have places within 1 + `SLACK_SECONDS`, and places are spaced so that
    this span holds at most `per_second`. A longer way does no harm either as long as no more than
    `most_in_flight` requests are under way at once: those are all that can be delayed into a second.

Why not a library: `limits` (5.8) counts by the caller's clock, on which machines disagree, and doesn't say
when to come again, so that waiting means polling; a call costs some 0.2 ms with either.

Only commands of Redis 6.2 are used. If the server's clock is set back by more than `FAR_SECONDS`, the
channel's state is dropped; if by less, permits are late by as much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from activity_platform.failures import TransientFailure

BLOCK_SECONDS = 0.01
MAX_AGE_SECONDS = 0.05
TRANSIT_SECONDS = 0.09
SLACK_SECONDS = BLOCK_SECONDS + MAX_AGE_SECONDS + TRANSIT_SECONDS
RUNS_AT_ONCE = 2  # of one OA, by the limits of dagster.yaml

PAUSE_SECONDS = 1.0  # LINE's windows are a second long, and it names no time to wait
MAX_PAUSE_SECONDS = 60.0
SLOWEST = 8.0
RECOVERY_SECONDS = 5.0  # in which a slowed channel doubles its pace again
FAR_SECONDS = 300
FORGET_SECONDS = 600  # longer than the longest pause and the recovery after it
STALE_RESERVATIONS = 100

_STATE = f"""
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stored = redis.call('HMGET', KEYS[1], 'next', 'paused_until', 'slowness')
local next = tonumber(stored[1] or 0)
local paused_until = tonumber(stored[2] or 0)
local slowness = tonumber(stored[3] or 1)
if math.max(next, paused_until) > now + {FAR_SECONDS * 1_000_000} then
  next, paused_until, slowness = 0, 0, 1
end
if now > paused_until then
  slowness = math.max(1, slowness * 0.5 ^ ((now - paused_until) / {RECOVERY_SECONDS * 1_000_000:.0f}))
end
local function store(values)
  redis.call('HSET', KEYS[1], unpack(values))
  redis.call('PEXPIRE', KEYS[1], {FORGET_SECONDS * 1000})
end
"""

#: KEYS: channel; ARGV: interval in µs, permits wanted. Answers the permits given and the µs until the first.
_RESERVE = (
    _STATE
    + f"""
local interval = ARGV[1] * slowness
local permits = math.min(tonumber(ARGV[2]), math.floor({BLOCK_SECONDS * 1_000_000:.0f} / interval) + 1)
local first = math.max(next, now)
store({{'next', string.format('%.0f', math.ceil(first + permits * interval))}})
return {{permits, first - now}}
"""
)

#: KEYS: channel; ARGV: µs of pause, the greatest slowness. Refusals that come within one pause count once.
_SLOW_DOWN = (
    _STATE
    + """
if now > paused_until then
  slowness = math.min(tonumber(ARGV[2]), slowness * 2)
end
paused_until = math.max(paused_until, now + ARGV[1])
store({
  'next', string.format('%.0f', math.max(next, paused_until)),
  'paused_until', string.format('%.0f', paused_until),
  'slowness', string.format('%.6f', slowness)
})
"""
)


class ChannelPermits:
    """The permits of one channel as one process takes them. Any number of tasks may wait at once.

    `channel` names the state in Redis: processes with the same one share the limit, and must agree on
    `per_second`. `pause_seconds` is what a refusal costs when LINE names no time. `clock` gives seconds that
    only grow.
    """

    def __init__(
        self,
        redis: Redis,
        channel: str,
        per_second: int,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._key = f"line_rate:{channel}"
        self._interval = interval_microseconds(per_second)
        self._reserve_script = redis.register_script(_RESERVE)
        self._slow_down_script = redis.register_script(_SLOW_DOWN)
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._wanted = 1
        self._left = 0
        self._expires = 0.0

    async def take(self) -> None:
        """Returns when the caller may send one request, which it must do at once.

        Raises `TransientFailure` when Redis is away or too slow to keep time with.
        """
        async with self._turn:
            for _ in range(STALE_RESERVATIONS):
                if self._left and self._clock() <= self._expires:
                    self._left -= 1
                    return
                await self._reserve()
        raise TransientFailure(
            "Redis answers too slowly to keep LINE's rate limit: is it far away or overloaded?"
        )

    async def slow_down(self, pause_seconds: float | None = None) -> None:
        """Nobody gets a permit of this channel for `pause_seconds`, and half the pace follows, which recovers
        in `RECOVERY_SECONDS`. To be called when LINE says that it was asked too fast."""
        pause = min(self._pause_seconds if pause_seconds is None else pause_seconds, MAX_PAUSE_SECONDS)
        self._left = 0
        await self._call(self._slow_down_script, int(pause * 1_000_000), SLOWEST)

    async def _reserve(self) -> None:
        # A block that was used up was too small; of one that went stale, the rest was too much.
        self._wanted = max(1, self._wanted - self._left) if self._left else self._wanted * 2
        asked_at = self._clock()
        self._left, wait = await self._call(self._reserve_script, self._interval, self._wanted)
        self._wanted = self._left
        # Counted from before the call, so that a slow answer makes permits expire early, never late.
        self._expires = asked_at + wait / 1_000_000 + MAX_AGE_SECONDS
        if wait:
            await self._sleep(wait / 1_000_000)

    async def _call(self, script: Callable[..., Awaitable[list[int]]], *arguments: float) -> list[int]:
        try:
            return await script(keys=[self._key], args=arguments)
        except RedisError as error:
            message = f"Redis can't be reached, so LINE's rate limit can't be kept ({type(error).__name__})"
            raise TransientFailure(message) from error


def interval_microseconds(per_second: int) -> int:
    """The distance of two permits: the least with which 1 + `SLACK_SECONDS` hold at most `per_second`."""
    return int((1 + SLACK_SECONDS) * 1_000_000 / per_second) + 1


def most_in_flight(per_second: int) -> int:
    """How many requests of a channel, all processes together, may be under way at once for the limit to hold
    whatever their delays; at least 1."""
    return max(1, int(TRANSIT_SECONDS * 1_000_000) // interval_microseconds(per_second))


def workers_of_a_run(per_second: int) -> int:
    """How many requests one run may have under way, so that `RUNS_AT_ONCE` keep to `most_in_flight`."""
    return max(1, most_in_flight(per_second) // RUNS_AT_ONCE)
