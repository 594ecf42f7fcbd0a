"""The demo's audiences: created, updated, added to, removed from and deleted through the queues.

What comes out is compared wherever a consumer reads it: the users' rows, the statistics, the CSV for the
multicast, and the stream of what the trigger rules fired.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import psycopg

from activity_platform.audience.firings import STREAM
from activity_platform.failures import PlatformError
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.gateways.queue import (
    CREATE_AUDIENCE,
    DELETE_AUDIENCE,
    MOOKEPT_AUDIENCE,
    UPDATE_AUDIENCE,
    Queues,
    connect,
)
from activity_platform.settings import Settings

ORGANIZATION = 1
USERS = 60
MOST_BYTES = 1 << 20
FIRINGS_AT_MOST = 100_000

ADD_OA = """
INSERT INTO line_oa (organization_id, hash, channel_access_token) VALUES (%s, %s, %s) RETURNING id
"""
ADD_AUDIENCE = """
INSERT INTO audience (organization_id, line_oa_id, name) VALUES (%s, %s, %s) RETURNING id
"""
ADD_RULE = """
INSERT INTO trigger_rule (organization_id, line_oa_id, kind, audience_id, on_event)
VALUES (%s, %s, 'audience_membership', %s, %s)
"""
UNFINISHED = """
SELECT %(messages)s - count(*) FILTER (WHERE finished_at IS NOT NULL) FROM audience_import
WHERE audience_id = ANY (%(audiences)s)
"""
MEMBERS = "SELECT line_user_id FROM line_user WHERE line_oa_id = %s AND audience_ids @> ARRAY[%s]::bigint[]"
INFO = "SELECT info FROM audience WHERE id = %s"
FIRINGS = "SELECT on_event, count(*) FROM trigger_firing WHERE audience_id = %s GROUP BY on_event"
UNPUBLISHED = "SELECT count(*) FROM trigger_firing WHERE audience_id = %s AND published_at IS NULL"


class AudienceRoute:
    """Files and messages in; members, statistics, CSV and firings out."""

    name = "audiences"
    steps = 6

    def __init__(self, settings: Settings, ui_url: str) -> None:
        self._settings = settings
        self._ui_url = ui_url
        self._queues = Queues(connect(settings.redis_url))
        self._store = ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
        self._users = [f"U{secrets.token_hex(16)}" for _ in range(USERS)]
        self._oa = self._kept = self._dropped = 0

    def send(self, advance: Callable[[], None]) -> str:
        self._add_rows()
        users = self._users
        untidy = [*users[:40], "not-an-id", users[0].upper(), *users[:2]]
        messages: tuple[tuple[str, int, Sequence[str] | None, dict[str, str]], ...] = (
            (CREATE_AUDIENCE, self._kept, untidy, {}),
            (CREATE_AUDIENCE, self._dropped, users[:5], {}),
            (UPDATE_AUDIENCE, self._kept, users[10:50], {}),
            (MOOKEPT_AUDIENCE, self._kept, users[50:], {"actionType": "add"}),
            (MOOKEPT_AUDIENCE, self._kept, users[10:20], {"actionType": "remove"}),
            (DELETE_AUDIENCE, self._dropped, None, {}),
        )
        for queue, audience, ids, more in messages:
            self._publish(queue, audience, ids, more)
            advance()
        return "2 created; one updated, added to, removed from; the other deleted"

    def awaited(self) -> str | None:
        with psycopg.connect(self._settings.database_url) as connection:
            values = {"messages": self.steps, "audiences": [self._kept, self._dropped]}
            ((left,),) = connection.execute(UNFINISHED, values)
            ((unpublished,),) = connection.execute(UNPUBLISHED, [self._kept])
        return f"the audiences' runs; {left} messages left" if left or unpublished else None

    def verify(self) -> str:
        expected = sorted(self._users[20:])
        with psycopg.connect(self._settings.database_url) as connection:
            members = sorted(user for (user,) in connection.execute(MEMBERS, [self._oa, self._kept]))
            gone = connection.execute(MEMBERS, [self._oa, self._dropped]).fetchall()
            ((info,),) = connection.execute(INFO, [self._kept])
            fired: dict[str, int] = dict(connection.execute(FIRINGS, [self._kept]).fetchall())
        csv = self._store.get(info["filePath"], most_bytes=MOST_BYTES).decode().splitlines()
        self._expect("members", members, expected)
        self._expect("members of the deleted audience", gone, [])
        self._expect("the CSV", csv, ["Line UserID", *expected])
        self._expect("info.members", info["members"], len(expected))
        self._expect("firings", fired, {"added": 60, "removed": 20})
        self._expect("the stream of firings", self._streamed(), Counter(fired))
        return f"{len(members)} members in rows, statistics and CSV; {sum(fired.values())} firings streamed"

    def link(self) -> str:
        return f"{self._ui_url}/assets/audience_imports"

    def _add_rows(self) -> None:
        with psycopg.connect(self._settings.database_url) as connection:
            ((self._oa,),) = connection.execute(ADD_OA, [ORGANIZATION, secrets.token_hex(8), "demo"])
            ((self._kept,),) = connection.execute(ADD_AUDIENCE, [ORGANIZATION, self._oa, "Demo: regulars"])
            ((self._dropped,),) = connection.execute(
                ADD_AUDIENCE, [ORGANIZATION, self._oa, "Demo: to delete"]
            )
            for event in ("added", "removed"):
                connection.execute(ADD_RULE, [ORGANIZATION, self._oa, self._kept, event])

    def _publish(self, queue: str, audience: int, ids: Sequence[str] | None, more: dict[str, str]) -> None:
        payload: dict[str, object] = {
            "audienceId": audience,
            "lineOaId": self._oa,
            "organizationId": ORGANIZATION,
            **more,
        }
        if ids is not None:
            payload["filePath"] = path = f"uploads/demo-{secrets.token_hex(8)}.csv"
            text = "Line UserID\n" + "".join(f"{one}\n" for one in ids)
            self._store.put(path, text.encode(), content_type="text/csv")
        self._queues.publish(queue, msgspec.json.encode(payload))

    def _streamed(self) -> Counter[str]:
        entries = self._queues.peek(STREAM, count=FIRINGS_AT_MOST).entries
        payloads = [msgspec.json.decode(entry.payload) for entry in entries]
        by_id = {one["firingId"]: one["event"] for one in payloads if one["audienceId"] == self._kept}
        return Counter(by_id.values())

    def _expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise PlatformError(f"{self.name}: {what} differ from what was sent")
