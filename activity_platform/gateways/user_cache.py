"""Copies of line_user rows in Redis, at `LINE_USER:<lineUserId>`, that other flows write and read."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from activity_platform.gateways.queue import outages_named

KEY_PREFIX = "LINE_USER:"


class UserCache:
    """All copies in one Redis. Raises `QueueAway` when it is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def forget(self, line_user_ids: Sequence[str]) -> None:
        """Drops the copies of these users (some thousands at most: it is one command)."""
        if line_user_ids:
            with outages_named():
                self._client.unlink(*(KEY_PREFIX + one for one in line_user_ids))
