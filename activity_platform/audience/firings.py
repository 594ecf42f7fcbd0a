"""Sending what rules fired: `trigger_firing` is the outbox of the stream `trigger_firings`.

A firing is sent at least once: whoever is killed between sending and marking leaves it to be sent again.
Consumers recognize it by `firingId`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import psycopg
from psycopg.rows import class_row

STREAM = "trigger_firings"
#: The table is the outbox, not the queue's memory: no more than this wait in the stream.
MOST_WAITING = 100_000
BATCH = 1_000

# By the partial index trigger_firing_unpublished. A sender passes over what another one has in hand. The user
# is gone if people had them erased.
_TAKE = """
SELECT f.id, f.rule_id, f.audience_id, a.line_oa_id, a.organization_id, u.line_user_id, f.on_event,
    f.message_id, f.fired_at
FROM trigger_firing f
LEFT JOIN audience a ON a.id = f.audience_id
LEFT JOIN line_user u ON u.line_oa_id = a.line_oa_id AND u.id = f.user_id
WHERE f.published_at IS NULL
ORDER BY f.id LIMIT %s
FOR UPDATE OF f SKIP LOCKED
"""
_MARK = "UPDATE trigger_firing SET published_at = %s WHERE id = ANY(%s)"
# By trigger_firing_unpublished.
_UNPUBLISHED = "SELECT count(*), min(fired_at) FROM trigger_firing WHERE published_at IS NULL"


class FiringStream(Protocol):
    """Where firings are sent."""

    def depth(self, queue: str, /) -> int: ...

    def publish_many(self, queue: str, payloads: list[bytes | str], /) -> int: ...


@dataclass(frozen=True)
class Published:
    """`dropped`: nobody is told of a user who is gone. `full`: the stream takes no more for now."""

    published: int = 0
    dropped: int = 0
    full: bool = False


@dataclass(frozen=True)
class Unpublished:
    """What waits to be sent, and how long its oldest has waited."""

    count: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Firing:
    """A firing with what its consumer is told."""

    id: int
    rule_id: int
    audience_id: int
    line_oa_id: int | None
    organization_id: int | None
    line_user_id: str | None
    on_event: str
    message_id: str
    fired_at: datetime

    def payload(self) -> bytes:
        """JSON, ids as numbers, the time in UTC."""
        return msgspec.json.encode(
            {
                "firingId": self.id,
                "ruleId": self.rule_id,
                "audienceId": self.audience_id,
                "lineOaId": self.line_oa_id,
                "organizationId": self.organization_id,
                "lineUserId": self.line_user_id,
                "event": self.on_event,
                "messageId": self.message_id,
                "firedAt": self.fired_at.astimezone(UTC),
            }
        )


def publish_firings(connection: psycopg.Connection, *, now: datetime, stream: FiringStream) -> Published:
    """Sends what is unpublished, oldest first, until nothing is left or the stream is full.

    Raises `QueueAway`; what was not marked is sent next time.
    """
    published = dropped = 0
    while (room := MOST_WAITING - stream.depth(STREAM)) > 0:
        with connection.transaction():
            firings = _take(connection, min(BATCH, room))
            told = [firing.payload() for firing in firings if firing.line_user_id is not None]
            stream.publish_many(STREAM, list(told))
            connection.execute(_MARK, [now, [firing.id for firing in firings]])
        if not firings:
            return Published(published, dropped)
        published += len(told)
        dropped += len(firings) - len(told)
    return Published(published, dropped, full=True)


def unpublished(connection: psycopg.Connection, *, now: datetime) -> Unpublished:
    """How much waits."""
    ((count, oldest),) = connection.execute(_UNPUBLISHED)
    return Unpublished(count, max(0.0, (now - oldest).total_seconds()) if oldest else 0.0)


def _take(connection: psycopg.Connection, most: int) -> list[Firing]:
    with connection.cursor(row_factory=class_row(Firing)) as cursor:
        return cursor.execute(_TAKE, [most]).fetchall()
