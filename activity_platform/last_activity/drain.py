"""Works the stream of last activities off: read a page, apply it, then delete what is done.

A crash between two of these leaves entries that are applied already; the second time changes nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import psycopg

from activity_platform.gateways.queue import BAD_PAYLOAD, LAST_ACTIVITY, Burial, Entry, Page, Queues
from activity_platform.gateways.user_cache import UserCache
from activity_platform.last_activity.cached_users import renew
from activity_platform.last_activity.messages import Activity, InvalidMessage, decode
from activity_platform.last_activity.update import Outcome, connect, update

logger = logging.getLogger(__name__)

STEP_ENTRIES = 1_000
POLL_SECONDS = 0.1  # how long to wait after an empty read


@dataclass(frozen=True)
class DrainResult:
    """What a drain did, in messages: `read` = `updated` + `stale` + `unknown` + `buried`.

    `seconds` are those spent working, not waiting, and `oldest_seconds` is how long the message that had
    waited longest had waited when it was read.
    """

    read: int = 0
    updated: int = 0
    stale: int = 0
    unknown: int = 0
    buried: int = 0
    seconds: float = 0.0
    oldest_seconds: float = 0.0

    @property
    def messages_per_second(self) -> float:
        return self.read / self.seconds if self.seconds else 0.0

    def numbers(self) -> dict[str, float]:
        """Every number by name, for people and plots."""
        return asdict(self) | {"messages_per_second": self.messages_per_second}


def drain(
    database_url: str,
    queues: Queues,
    *,
    idle_seconds: float = 0.0,
    max_seconds: float = math.inf,
    step_entries: int = STEP_ENTRIES,
    on_progress: Callable[[DrainResult], object] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> DrainResult:
    """Works until the stream has been empty for `idle_seconds`, or for `max_seconds` at most.

    `on_progress` is told the numbers so far after every step that read something. Raises
    `TransientFailure` when PostgreSQL or Redis is away; whatever isn't done is then still in the stream.
    """
    result = DrainResult()
    with connect(database_url) as connection:
        started = busy_until = clock()
        while True:
            began = clock()
            if began - started >= max_seconds:
                return result
            done = drain_step(connection, queues, step_entries)
            now = clock()
            if done.read:
                busy_until = now
                result = _sum(result, replace(done, seconds=now - began))
                on_progress(result)
            elif now - busy_until >= idle_seconds:
                return result
            else:
                sleep(POLL_SECONDS)


def drain_step(connection: psycopg.Connection, queues: Queues, count: int = STEP_ENTRIES) -> DrainResult:
    """One page: at most six round trips to Redis, three statements and one more per further OA.

    A user whose copy names a row that isn't theirs costs two more statements.
    """
    page = queues.peek(LAST_ACTIVITY, count=count)
    if not page.entries:
        return DrainResult()
    activities, unreadable = _decode_each(page.entries)
    cache = UserCache(queues.client)
    copies = cache.read({activity.user.line_user_id for activity in activities})
    outcome = update(connection, copies, activities)
    renew(cache, outcome.rows, copies)
    _end(queues, page, unreadable + outcome.burials)
    _report(outcome, unreadable)
    return _count(page, outcome, unreadable)


def _decode_each(entries: Sequence[Entry]) -> tuple[list[Activity], tuple[Burial, ...]]:
    activities: list[Activity] = []
    burials: list[Burial] = []
    for entry in entries:
        try:
            activities.append(decode(entry))
        except InvalidMessage as error:
            burials.append(Burial(entry, BAD_PAYLOAD, str(error)))
    return activities, tuple(burials)


def _end(queues: Queues, page: Page, burials: Sequence[Burial]) -> None:
    """Takes the whole page out of the stream. What is done goes first: it makes room in a full Redis."""
    guilty = {burial.entry.entry_id for burial in burials}
    done = [entry.entry_id for entry in page.entries if entry.entry_id not in guilty]
    queues.finish(LAST_ACTIVITY, done)
    if burials:
        queues.bury(burials, now=page.read_at)


def _report(outcome: Outcome, unreadable: Sequence[Burial]) -> None:
    for burial in (*unreadable, *outcome.burials):
        logger.error("buried entry %s: %s", burial.entry.entry_id, burial.error)
    if outcome.unknown:
        first = outcome.unknown[0]
        logger.warning(
            "%d activities of users that no row knows, the first in entry %s",
            len(outcome.unknown),
            first.entry.entry_id,
        )


def _count(page: Page, outcome: Outcome, unreadable: Sequence[Burial]) -> DrainResult:
    return DrainResult(
        read=len(page.entries),
        updated=outcome.updated,
        stale=outcome.stale,
        unknown=len(outcome.unknown),
        buried=len(unreadable) + len(outcome.burials),
        oldest_seconds=page.oldest_seconds or 0.0,
    )


def _sum(one: DrainResult, two: DrainResult) -> DrainResult:
    return DrainResult(
        read=one.read + two.read,
        updated=one.updated + two.updated,
        stale=one.stale + two.stale,
        unknown=one.unknown + two.unknown,
        buried=one.buried + two.buried,
        seconds=one.seconds + two.seconds,
        oldest_seconds=max(one.oldest_seconds, two.oldest_seconds),
    )
