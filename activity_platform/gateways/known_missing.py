"""The LINE ids that LINE lately had no profile of, remembered in Redis for some hours.

One key an id, `line_missing:<OA id>:<LINE id>`, which goes by itself when its time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from activity_platform.failures import TransientFailure
from activity_platform.gateways.queue import outages_named

KEY_PREFIX = "line_missing:"
SCANNED_AT_ONCE = 1_000


class KnownMissing:
    """The missing ids of one OA. With `hours` 0 nothing is remembered. Raises `TransientFailure` when Redis
    is away."""

    def __init__(self, redis: Redis, line_oa_id: int, hours: float) -> None:
        self._redis = redis
        self._prefix = f"{KEY_PREFIX}{line_oa_id}:"
        self._milliseconds = int(hours * 3_600_000)

    async def among(self, user_ids: Sequence[str]) -> set[str]:
        """Those of the ids (some thousands at most: it is one MGET) that are known to be missing."""
        if not user_ids or not self._milliseconds:
            return set()
        try:
            values = await self._redis.mget([self._prefix + user_id for user_id in user_ids])
        except RedisError as error:
            raise _away(error) from error
        return {user_id for user_id, value in zip(user_ids, values, strict=True) if value is not None}

    async def remember(self, user_ids: Sequence[str]) -> None:
        """The ids (some thousands at most: it is one pipeline) are missing from now on."""
        if not user_ids or not self._milliseconds:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for user_id in user_ids:
                    pipeline.set(self._prefix + user_id, 1, px=self._milliseconds)
                await pipeline.execute()
        except RedisError as error:
            raise _away(error) from error


def forget_missing(client: redis.Redis, line_oa_id: int, user_id: str) -> int:
    """Forgets that the id was missing; returns 1 if it was remembered. Raises `QueueAway`."""
    with outages_named():
        return int(client.unlink(f"{KEY_PREFIX}{line_oa_id}:{user_id}"))


def forget_all_missing(client: redis.Redis, line_oa_id: int) -> int:
    """Forgets all missing ids of the OA; returns how many. Looks at every key. Raises `QueueAway`."""
    forgotten = 0
    with outages_named():
        for key in client.scan_iter(match=f"{KEY_PREFIX}{line_oa_id}:*", count=SCANNED_AT_ONCE):
            forgotten += int(client.unlink(key))
    return forgotten


def _away(error: RedisError) -> TransientFailure:
    return TransientFailure(
        f"Redis can't be reached, where missing LINE ids are kept ({type(error).__name__})"
    )
