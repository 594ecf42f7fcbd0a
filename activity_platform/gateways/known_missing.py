"""The LINE ids that LINE lately had no profile of, remembered in Redis for some hours.

One key an id, `line_missing:<OA id>:<LINE id>`, which goes by itself when its time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from activity_platform.failures import TransientFailure


class KnownMissing:
    """The missing ids of one OA. With `hours` 0 nothing is remembered. Raises `TransientFailure` when Redis
    is away."""

    def __init__(self, redis: Redis, line_oa_id: int, hours: float) -> None:
        self._redis = redis
        self._prefix = f"line_missing:{line_oa_id}:"
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


def _away(error: RedisError) -> TransientFailure:
    return TransientFailure(
        f"Redis can't be reached, where missing LINE ids are kept ({type(error).__name__})"
    )
