"""Copies of line_user rows in Redis, at `LINE_USER:<lineUserId>`, that other flows write and read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

import redis

from activity_platform.gateways.queue import outages_named

KEY_PREFIX = "LINE_USER:"

# KEYS: copies. ARGV: "last" or not, then for each key the bytes that are expected and the new ones.
# Returns key numbers and bytes of copies that are others than expected; the last time it deletes these.
# MGET of one key, since GET fails on a key that holds no string. Plain SET would end the time to live.
_REPLACE = """
local changed = {}
for i = 1, #KEYS do
  local now = redis.call('MGET', KEYS[i])[1]
  if now and now == ARGV[2 * i] then redis.call('SET', KEYS[i], ARGV[2 * i + 1], 'KEEPTTL')
  elseif now and ARGV[1] == 'last' then redis.call('DEL', KEYS[i])
  elseif now then changed[#changed + 1] = {i, now} end
end
return changed
"""


class Replacement(NamedTuple):
    """A copy as it was read, and as it has to be."""

    old: bytes
    new: bytes


class UserCache:
    """All copies in one Redis. Raises `QueueAway` when it is away. None of its methods makes a copy."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def read(self, line_user_ids: Collection[str]) -> dict[str, bytes]:
        """The copies that there are, by LINE user id. One round trip."""
        if not line_user_ids:
            return {}
        with outages_named():
            values = self._client.mget([KEY_PREFIX + one for one in line_user_ids])
        found = zip(line_user_ids, cast(list[bytes | None], values), strict=True)
        return {line_user_id: value for line_user_id, value in found if value}

    def replace(self, replacements: Mapping[str, Replacement], *, last: bool) -> dict[str, bytes]:
        """Changes copies that are still as they were read; they keep their time to live. One round trip.

        Returns the bytes of those that somebody else changed meanwhile. With `last` these are deleted
        instead: no copy is better than one that tells old news.
        """
        if not replacements:
            return {}
        line_user_ids = list(replacements)
        keys = [KEY_PREFIX + one for one in line_user_ids]
        values = [value for replacement in replacements.values() for value in replacement]
        with outages_named():
            changed = self._client.eval(_REPLACE, len(keys), *keys, "last" if last else "", *values)
        return {line_user_ids[number - 1]: copy for number, copy in cast(list[tuple[int, bytes]], changed)}

    def forget(self, line_user_ids: Sequence[str]) -> None:
        """Drops the copies of these users (some thousands at most: it is one command)."""
        if line_user_ids:
            with outages_named():
                self._client.unlink(*(KEY_PREFIX + one for one in line_user_ids))
