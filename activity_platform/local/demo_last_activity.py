"""The demo's activities of LINE users: put on the queue, drained by the sensor's run, compared row by row."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import psycopg

from activity_platform.failures import PlatformError
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues, connect
from activity_platform.settings import Settings

ORGANIZATION = 1
USERS = 500
MESSAGES = 4_000
MESSAGES_A_STEP = 100
TYPES = ("message", "follow", "click", "postback", "unfollow")

ADD_OA = """
INSERT INTO line_oa (organization_id, hash, channel_access_token) VALUES (%s, %s, %s) RETURNING id
"""
ADD_USERS = """
INSERT INTO line_user (organization_id, line_oa_id, line_user_id)
SELECT %(organization)s, %(oa)s, line_user_id FROM unnest(%(users)s::text[]) AS line_user_id
"""
STATES = """
SELECT line_user_id, last_activity_type, last_activity_status FROM line_user
WHERE line_oa_id = %s AND last_activity_date IS NOT NULL
"""


class LastActivityRoute:
    """Activities in, four columns of line_user out."""

    name = "last activity"
    steps = MESSAGES // MESSAGES_A_STEP

    def __init__(self, settings: Settings, ui_url: str) -> None:
        self._settings = settings
        self._ui_url = ui_url
        self._queues = Queues(connect(settings.redis_url))
        self._users = [f"U{secrets.token_hex(16)}" for _ in range(USERS)]
        self._oa = 0
        self._expected: dict[str, tuple[str, str]] = {}

    def send(self, advance: Callable[[], None]) -> str:
        self._oa = self._add_users()
        messages = self._messages(random.Random(7))  # noqa: S311 - traffic, not secrets
        for _ in range(self.steps):
            self._queues.publish_many(LAST_ACTIVITY, islice(messages, MESSAGES_A_STEP))
            advance()
        return f"{MESSAGES:,} activities of {len(self._expected)} users queued"

    def awaited(self) -> str | None:
        depth = self._queues.depth(LAST_ACTIVITY)
        return f"the drain, which the sensor starts; {depth:,} messages left" if depth else None

    def verify(self) -> str:
        with psycopg.connect(self._settings.database_url) as connection:
            found = {user: (kind, status) for user, kind, status in connection.execute(STATES, [self._oa])}
        if found != self._expected:
            wrong = sum(found.get(user) != state for user, state in self._expected.items())
            raise PlatformError(
                f"{self.name}: {wrong} of {len(self._expected)} rows differ from what was sent"
            )
        return f"{len(found)} rows of line_user moved, each to its user's last activity"

    def link(self) -> str:
        return f"{self._ui_url}/assets/line_user_last_activity"

    def _add_users(self) -> int:
        with psycopg.connect(self._settings.database_url) as connection:
            row = connection.execute(ADD_OA, [ORGANIZATION, secrets.token_hex(8), "demo"]).fetchone()
            oa = int(row[0]) if row else 0
            connection.execute(ADD_USERS, {"organization": ORGANIZATION, "oa": oa, "users": self._users})
        return oa

    def _messages(self, chance: random.Random) -> Iterator[bytes]:
        while True:
            user, kind = chance.choice(self._users), chance.choice(TYPES)
            status = "inactive" if kind == "unfollow" else "active"
            self._expected[user] = (kind, status)
            yield msgspec.json.encode(
                {
                    "lineUserId": user,
                    "lineOaId": self._oa,
                    "organizationId": ORGANIZATION,
                    "activityType": kind,
                    "activityStatus": status,
                }
            )
