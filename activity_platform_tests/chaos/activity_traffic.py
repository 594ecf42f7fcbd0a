"""A producer of last activities that knows exactly which entries its queue has taken."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis

from activity_platform.gateways.queue import LAST_ACTIVITY, connect
from activity_platform.last_activity.messages import EPOCH, event_time
from activity_platform_tests.audience_world import World
from activity_platform_tests.chaos.site import Site
from activity_platform_tests.last_activity.test_one_by_one import Message
from activity_platform_tests.simulated_line import user_id

PAUSE_SECONDS = 0.1
BATCH = 30
POISON = 0.01
BELATED = 0.05  # as if replayed: queued long ago
UNKNOWN = 0.01
TYPES = ("message", "follow", "click")


@dataclass(frozen=True)
class Queued:
    """An entry and what it says; `message` is None for one that says nothing."""

    entry_id: str
    fields: dict[Any, Any]
    message: Message | None


class ActivityTraffic:
    """`delivered` are the entries taken, in their order."""

    def __init__(self, site: Site, seed: int, world: World, users: int) -> None:
        self._client = connect(site.settings.redis_url)
        self._chance = random.Random(f"{seed} activities")
        self._world = world
        self.users = users
        self._last_id = (0, 0)
        self.delivered: list[Queued] = []

    def run(self, stop: threading.Event) -> None:
        """Queues batches until told to stop."""
        while not stop.wait(PAUSE_SECONDS):
            batch = [self._next() for _ in range(self._chance.randint(1, BATCH))]
            self._add(batch)
            self.delivered += batch

    def _add(self, batch: Sequence[Queued]) -> None:
        """Tries until every entry is taken. The ids are the producer's own: an entry that an earlier try
        left is refused the second time, so that none gets in twice."""
        pending = list(batch)
        while pending:
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    pipeline.ping()
                    for one in pending:
                        pipeline.xadd(LAST_ACTIVITY, one.fields, id=one.entry_id)
                    pong, *answers = pipeline.execute(raise_on_error=False)
            except (redis.ConnectionError, redis.TimeoutError):
                time.sleep(PAUSE_SECONDS)
                continue
            if pong is True:
                pending = [one for one, answer in zip(pending, answers, strict=True) if not _taken(answer)]

    def _next(self) -> Queued:
        chance = self._chance
        entry_id = self._new_id()
        if chance.random() < POISON:
            return Queued(entry_id, {"payload": f"poison {entry_id}"}, None)
        known = chance.random() >= UNKNOWN
        number = chance.randrange(self.users) + (0 if known else 10**9)
        fields: dict[Any, Any] = {}
        at = event_time(entry_id)
        if chance.random() < BELATED:
            at -= timedelta(days=chance.random() * 200)
            at = EPOCH + timedelta(milliseconds=(at - EPOCH) // timedelta(milliseconds=1))
            fields["original_id"] = f"{(at - EPOCH) // timedelta(milliseconds=1)}-0"
        kind, status = chance.choice(TYPES), chance.choice(("active", "inactive"))
        fields["payload"] = json.dumps(
            {
                "lineUserId": user_id(number),
                "lineOaId": self._world.line_oa_id,
                "organizationId": self._world.organization_id,
                "activityType": kind,
                "activityStatus": status,
            }
        )
        return Queued(entry_id, fields, Message(number, self._world.line_oa_id, kind, status, at))

    def _new_id(self) -> str:
        """Later than the last one, by the clock while that goes on."""
        now = (time.time_ns() // 1_000_000, 0)
        last, sequence = self._last_id
        self._last_id = max(now, (last, sequence + 1))
        return "-".join(map(str, self._last_id))


def _taken(answer: object) -> bool:
    return isinstance(answer, bytes) or "equal or smaller" in str(answer)
