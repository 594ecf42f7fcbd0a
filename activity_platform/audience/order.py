"""Which message comes next: for each audience only the oldest that is not finished, over all four queues.

Messages are ordered by the id of their first entry, then by queue. Nothing is changed by looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

import psycopg

from activity_platform.audience.attempts import due_at, find_attempts
from activity_platform.audience.messages import AUDIENCE_QUEUES, AudienceMessage, BadPayload, decode
from activity_platform.gateways.queue import PAGE_ENTRIES, Entry, Page, id_order

#: How far a look reads into one queue: a second's work, and memory for payloads of the largest size.
MOST_ENTRIES = 20_000
MOST_BYTES = 16 * 1024 * 1024

Place: TypeAlias = tuple[tuple[int, int], int, tuple[int, int]]


class Peeking(Protocol):
    """Reads a queue from its head, or from behind an entry."""

    def peek(self, queue: str, *, count: int = ..., after: str | None = ...) -> Page: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """The oldest unfinished message of an audience."""

    entry: Entry
    message: AudienceMessage

    @property
    def key(self) -> tuple[str, str]:
        """What its attempts are kept under."""
        return self.entry.queue, self.entry.message_id

    @property
    def place(self) -> Place:
        """Where it stands in the order of all messages."""
        return (
            id_order(self.entry.original_id),
            AUDIENCE_QUEUES.index(self.entry.queue),
            id_order(self.entry.entry_id),
        )


@dataclass(frozen=True)
class Heads:
    """One candidate an audience, oldest first; entries that are no messages; whether the queues are empty."""

    candidates: tuple[Candidate, ...]
    undecodable: tuple[Entry, ...]

    @property
    def empty(self) -> bool:
        return not self.candidates and not self.undecodable


def read_heads(queues: Peeking) -> Heads:
    """Looks at the four queues. Where one is too long to read to its end, nothing is said of messages that
    came later than what was read of it: an older one of the same audience may stand behind."""
    oldest: dict[int, Candidate] = {}
    undecodable: list[Entry] = []
    horizon = None
    for queue in AUDIENCE_QUEUES:
        looked = _Look(queues, queue)
        for entry in looked.entries():
            try:
                candidate = Candidate(entry, decode(entry))
            except BadPayload:
                undecodable.append(entry)
                continue
            known = oldest.setdefault(candidate.message.audience_id, candidate)
            if candidate.place < known.place:
                oldest[candidate.message.audience_id] = candidate
        if looked.cut_at is not None:
            horizon = min(horizon or looked.cut_at, looked.cut_at)
    candidates = sorted(oldest.values(), key=lambda one: one.place)
    if horizon is not None:
        candidates = [one for one in candidates if one.place[0] <= horizon]
    return Heads(tuple(candidates), tuple(undecodable))


def due(
    connection: psycopg.Connection,
    candidates: Sequence[Candidate],
    *,
    retry_seconds: Sequence[int],
    now: datetime,
) -> list[Candidate]:
    """Those that were never tried, or whose next attempt's time has come."""
    known = find_attempts(connection, [one.key for one in candidates])
    return [one for one in candidates if one.key not in known or due_at(known[one.key], retry_seconds) <= now]


class _Look:
    """One queue, read page by page. `cut_at`: the order of the last entry read if others stand behind it."""

    def __init__(self, queues: Peeking, queue: str) -> None:
        self.cut_at: tuple[int, int] | None = None
        self._queues = queues
        self._queue = queue

    def entries(self) -> Iterator[Entry]:
        count = size = 0
        after = None
        while True:
            page = self._queues.peek(self._queue, count=PAGE_ENTRIES, after=after)
            yield from page.entries
            if not page.more:
                return
            count += len(page.entries)
            size += sum(len(entry.payload) for entry in page.entries)
            after = page.entries[-1].entry_id
            if count >= MOST_ENTRIES or size >= MOST_BYTES:
                self.cut_at = id_order(after)
                return
