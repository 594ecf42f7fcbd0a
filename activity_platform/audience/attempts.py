"""What is known of each message: its attempts, its signs of life, and whether it is processed.

Everything is keyed by (queue, message_id) and found by primary key. A message ends in `processed_message` or
as a dead letter; until then `message_attempt` says how often it was tried and when it may be tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg.rows import class_row, scalar_row

from activity_platform.audience.reasons import Failure, Reason

#: A worker beats every few seconds; one that has been silent for so long works no more.
SILENT_AFTER = timedelta(seconds=15)

_IS_PROCESSED = "SELECT 1 FROM processed_message WHERE queue = %s AND message_id = %s"
_MARK_PROCESSED = "INSERT INTO processed_message (queue, message_id, processed_at) VALUES (%s, %s, %s)"
_FIND = """
SELECT queue, message_id, attempts, last_error, last_attempt_at, heartbeat_at
FROM message_attempt
JOIN unnest(%s::text[], %s::text[]) AS wanted (queue, message_id) USING (queue, message_id)
"""
# Clears last_error: if this attempt is killed, it leaves none, and the one before must not speak for it.
_START = """
INSERT INTO message_attempt AS known (queue, message_id, attempts, last_attempt_at, heartbeat_at)
VALUES (%(queue)s, %(message_id)s, 1, %(now)s, %(now)s)
ON CONFLICT (queue, message_id) DO UPDATE SET
    attempts = known.attempts + 1, last_error = NULL, last_attempt_at = %(now)s, heartbeat_at = %(now)s
RETURNING attempts
"""
_END = """
UPDATE message_attempt SET last_error = %(error)s, last_attempt_at = %(now)s, heartbeat_at = NULL
WHERE queue = %(queue)s AND message_id = %(message_id)s
"""
_BEAT = """
UPDATE message_attempt SET heartbeat_at = clock_timestamp()
WHERE queue = %s AND message_id = %s AND heartbeat_at IS NOT NULL
"""
_FORGET = "DELETE FROM message_attempt WHERE queue = %s AND message_id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class Attempts:
    """What is known of a message that was tried. `heartbeat_at` is None once the last attempt has ended."""

    queue: str
    message_id: str
    attempts: int
    last_error: str | None
    last_attempt_at: datetime
    heartbeat_at: datetime | None

    def is_under_way(self, now: datetime) -> bool:
        """Whether a worker is at it, between two of its steps too."""
        return self.heartbeat_at is not None and self.heartbeat_at > now - SILENT_AFTER

    @property
    def last_failure(self) -> Failure:
        if self.last_error is None:
            return Failure(Reason.INTERNAL_ERROR, "the run ended without a word, as a killed one does")
        return Failure.parse(self.last_error)


def attempt_limit(retry_seconds: Sequence[int]) -> int:
    """How often a message is tried: once, and once more after each wait."""
    return len(retry_seconds) + 1


def due_at(known: Attempts, retry_seconds: Sequence[int]) -> datetime:
    """When the message may be tried again, or be buried if its attempts are used up."""
    waits = (*retry_seconds, 0)
    wait = timedelta(seconds=waits[min(known.attempts, len(waits)) - 1])
    if known.heartbeat_at is None:
        return known.last_attempt_at + wait
    return known.heartbeat_at + max(wait, SILENT_AFTER)


def find_attempts(
    connection: psycopg.Connection, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Attempts]:
    """What is known of those (queue, message_id) that were tried at all."""
    queues, message_ids = [queue for queue, _ in keys], [message_id for _, message_id in keys]
    with connection.cursor(row_factory=class_row(Attempts)) as cursor:
        cursor.execute(_FIND, [queues, message_ids])
        return {(known.queue, known.message_id): known for known in cursor}


def start_attempt(connection: psycopg.Connection, queue: str, message_id: str, *, now: datetime) -> int:
    """Counts an attempt before any work is done, so that one that is killed counts too; its number from 1."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        cursor.execute(_START, {"queue": queue, "message_id": message_id, "now": now})
        return int(cursor.fetchone())  # type: ignore[arg-type]  # the statement always returns its row


def end_attempt(
    connection: psycopg.Connection, queue: str, message_id: str, failure: Failure | None, *, now: datetime
) -> None:
    """The attempt is over, with a failure or well."""
    error = str(failure) if failure else None
    connection.execute(_END, {"queue": queue, "message_id": message_id, "error": error, "now": now})


def beat(connection: psycopg.Connection, queue: str, message_id: str) -> None:
    """A sign of life of the worker at this message. Does nothing once the attempt has ended."""
    connection.execute(_BEAT, [queue, message_id])


def forget_attempts(connection: psycopg.Connection, queue: str, message_ids: Sequence[str]) -> None:
    """Messages that people put back start afresh."""
    connection.execute(_FORGET, [queue, list(message_ids)])


def is_processed(connection: psycopg.Connection, queue: str, message_id: str) -> bool:
    """Whether the message's effect is committed."""
    return connection.execute(_IS_PROCESSED, [queue, message_id]).fetchone() is not None


def mark_processed(connection: psycopg.Connection, queue: str, message_id: str, *, now: datetime) -> None:
    """To be called in the effect's transaction. Raises `psycopg.errors.UniqueViolation` if it was done."""
    connection.execute(_MARK_PROCESSED, [queue, message_id, now])
