"""The nine promises of the platform, compared with what was sent, once everything is at rest.

Expectations come from the traffic's own records and from the platform's description, never from its code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from activity_platform.activity import checks, rollup
from activity_platform.activity.maintenance import maintain_log
from activity_platform.audience.firings import STREAM
from activity_platform.audience.messages import AUDIENCE_QUEUES
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues
from activity_platform.local.demo_traffic import expected_edges
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World
from activity_platform_tests.chaos.activity_traffic import ActivityTraffic
from activity_platform_tests.chaos.audience_traffic import AudienceTraffic, Firing
from activity_platform_tests.chaos.event_traffic import EventTraffic
from activity_platform_tests.chaos.watermark_watch import WatermarkWatch
from activity_platform_tests.last_activity.conftest import NEVER, Row
from activity_platform_tests.last_activity.test_one_by_one import one_by_one
from activity_platform_tests.simulated_line import user_id

K = TypeVar("K")
SHOWN = 3

PROMISES = {
    1: "no request yields a 5xx but 503",
    2: "202 is exactly that many rows, committed; not 2xx is none",
    3: "an edge is the sum over all accepted events up to the watermark",
    4: "the watermark never goes back and never passes now - lag or an uncommitted event",
    5: "maintenance and fold change nothing the second time",
    6: "every message ends exactly once: done, or dead with a reason",
    7: "rows with the id in audience_ids = the CSV = info.members, and the commands came in order",
    8: "a firing exists exactly once per rule, user and message",
    9: "last_activity_* is that of one message after the other",
}

STORED = "SELECT (context->>'request')::int, count(*) FROM activity_events GROUP BY 1"
EDGES = "SELECT actor_id, edge_type, target_type, target_id, weight, event_count FROM interaction_edges"
LOG = """
SELECT (SELECT count(*) FROM activity_events), (SELECT sum(weight) FROM interaction_edges),
    (SELECT count(*) FROM activity_events_default)
"""
HISTORY = "SELECT queue, message_id, status FROM audience_import"
PROCESSED = "SELECT queue, message_id FROM processed_message"
FIRED = """
SELECT f.rule_id, u.line_user_id, f.on_event, f.queue, f.message_id
FROM trigger_firing f JOIN line_user u ON u.id = f.user_id
"""
UNPUBLISHED = "SELECT id FROM trigger_firing WHERE published_at IS NULL"
FIRING_IDS = "SELECT id FROM trigger_firing"
LAST_ACTIVITIES = """
SELECT line_user_id, last_activity_type, last_activity_status, last_activity_period, last_activity_date
FROM line_user
"""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, and how."""

    promise: int
    difference: str

    def __str__(self) -> str:
        return f"promise {self.promise} ({PROMISES[self.promise]}): {self.difference}"


@dataclass(frozen=True)
class Evidence:
    """What was sent and seen, and where what came of it can be read."""

    settings: Settings
    world: World
    events: EventTraffic
    activities: ActivityTraffic
    audiences: AudienceTraffic
    watermark: WatermarkWatch

    @property
    def connection(self) -> psycopg.Connection:
        return self.world.connection

    @property
    def queues(self) -> Queues:
        return self.world.services.queues


def violations(evidence: Evidence) -> list[Violation]:
    """Every broken promise."""
    return [
        Violation(promise, difference)
        for promise, compare in COMPARISONS.items()
        for difference in compare(evidence)
    ]


def _answers(evidence: Evidence) -> Iterator[str]:
    for request in evidence.events.posted.values():
        if unheard := set(request.told) - {202, 400, 503, None}:
            yield f"request {request.number} was told {unheard}"
        if (400 in request.told) != (request.faulty and set(request.told) != {None}):
            kind = "faulty" if request.faulty else "sound"
            yield f"request {request.number}, a {kind} one, was told {request.told}"


def _rows(evidence: Evidence) -> Iterator[str]:
    stored: dict[int, int] = dict(evidence.connection.execute(STORED).fetchall())
    for number, request in evidence.events.posted.items():
        rows = stored.pop(number, 0)
        if rows not in request.allowed:
            yield f"request {number} was told {request.told}; rows {rows}, not one of {request.allowed}"
        if any(accepted != len(request.session.events) for accepted in request.accepted):
            yield f"request {number} of {len(request.session.events)} events was told {request.accepted}"
    if stored:
        yield f"rows of requests that nobody made: {stored}"


def _edges(evidence: Evidence) -> Iterator[str]:
    stored = {number for number, _ in evidence.connection.execute(STORED)}
    sent = [request.session for number, request in evidence.events.posted.items() if number in stored]
    expected = {key: (sum_.weight, sum_.event_count) for key, sum_ in expected_edges(sent).items()}
    found = {tuple(row[:4]): (row[4], row[5]) for row in evidence.connection.execute(EDGES)}
    yield from _differences("edge", found, expected)


def _watermark(evidence: Evidence) -> Iterator[str]:
    yield from evidence.watermark.seen
    if not evidence.watermark.looks:
        yield "nobody looked at it"
    if late := checks.check_late(evidence.connection).events:
        yield f"it passed {late} events that were not committed yet"


def _second_time(evidence: Evidence) -> Iterator[str]:
    before = evidence.connection.execute(LOG).fetchone()
    maintained = maintain_log(evidence.settings)
    if maintained.failed or maintained.created or maintained.moved_rows or maintained.dropped:
        yield f"maintenance found something to do: {maintained}"
    folded = rollup.fold(evidence.settings.database_url, lag_seconds=evidence.settings.rollup_lag_seconds)
    if folded.events or folded.waiting:
        yield f"the fold found something to do: {folded}"
    after = evidence.connection.execute(LOG).fetchone()
    if before != after or after is None or after[2]:
        yield f"events, weight and rows in DEFAULT were {before} and are {after}"


def _endings(evidence: Evidence) -> Iterator[str]:
    queues = (LAST_ACTIVITY, *AUDIENCE_QUEUES)
    yield from (
        f"{depth} entries are left in {one}" for one in queues if (depth := evidence.queues.depth(one))
    )
    outcome = evidence.audiences.expected()
    history = Counter(evidence.connection.execute(HISTORY).fetchall())
    yield from _differences("import", history, Counter((*key, one) for key, one in outcome.statuses.items()))
    done = dict.fromkeys(outcome.statuses, 1)
    yield from _differences("processed message", Counter(evidence.connection.execute(PROCESSED)), done)
    yield from _dead(evidence)


def _dead(evidence: Evidence) -> Iterator[str]:
    letters = [
        letter for queue in (LAST_ACTIVITY, *AUDIENCE_QUEUES) for letter in evidence.queues.dead(queue)
    ]
    for letter in letters:
        if letter.reason != "bad_payload":
            yield f"{letter.queue} {letter.message_id} was given up as {letter.reason}: {letter.error}"
    found = Counter(letter.payload for letter in letters if letter.reason == "bad_payload")
    own_ids = Counter(
        one.fields["payload"].encode() for one in evidence.activities.delivered if one.message is None
    )
    for payload, tries in (evidence.audiences.poison + own_ids).items():
        if not 1 <= found.pop(payload, 0) <= tries:
            yield f"{payload!r}, sent in {tries} tries, is not among the dead letters as often"
    if found:
        yield f"buried without having been sent: {found}"


def _audiences(evidence: Evidence) -> Iterator[str]:
    world = evidence.world
    for audience, members in evidence.audiences.expected().members.items():
        rows, info = set(world.members(audience)), world.info(audience)
        for where, found in (("rows", rows), ("the CSV", set(world.csv(info["filePath"])))):
            if found != members:
                more, less = len(found - members), len(members - found)
                yield f"audience {audience}: {more} too many in {where}, {less} missing"
        if info["members"] != len(members):
            yield f"audience {audience}: info says {info['members']} members, not {len(members)}"
        if info["color"] != "red":
            yield f"audience {audience}: the CMS's own key in info is gone"
    if plans := world.count("audience_change"):
        yield f"{plans} rows of stored plans are left"


def _firings(evidence: Evidence) -> Iterator[str]:
    fired: Counter[Firing] = Counter(evidence.connection.execute(FIRED).fetchall())
    yield from _differences("firing", fired, evidence.audiences.expected().firings)
    if unpublished := evidence.connection.execute(UNPUBLISHED).fetchall():
        yield f"{len(unpublished)} firings were not sent"
    streamed = {json.loads(payload)["firingId"] for payload in _streamed(evidence)}
    ids = {one for (one,) in evidence.connection.execute(FIRING_IDS)}
    if streamed != ids:
        yield f"{len(ids - streamed)} firings are not in the stream, {len(streamed - ids)} there are none"


def _streamed(evidence: Evidence) -> Iterator[bytes]:
    after = None
    while entries := evidence.queues.peek(STREAM, after=after).entries:
        yield from (entry.payload for entry in entries)
        after = entries[-1].entry_id


def _last_activities(evidence: Evidence) -> Iterator[str]:
    oa = evidence.world.line_oa_id
    delivered = [one.message for one in evidence.activities.delivered if one.message is not None]
    before: dict[tuple[int, int], Row | None] = {
        (number, oa): None for number in range(evidence.activities.users)
    }
    expected = {user_id(number): row for (number, _), row in one_by_one(delivered, before).items()}
    found = {row[0]: tuple(row[1:]) for row in evidence.connection.execute(LAST_ACTIVITIES)}
    found = {user: row for user, row in found.items() if user in expected or row != NEVER}
    yield from _differences("last activity", found, expected)


def _differences(what: str, found: Mapping[K, Any], expected: Mapping[K, Any]) -> Iterable[str]:
    different = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    if different:
        some = "; ".join(
            f"{key} is {found.get(key)}, not {expected.get(key)}"
            for key in sorted(different, key=str)[:SHOWN]
        )
        yield f"{len(different)} of {len(expected)} differ: {what} {some}"


COMPARISONS: Mapping[int, Callable[[Evidence], Iterable[str]]] = {
    1: _answers,
    2: _rows,
    3: _edges,
    4: _watermark,
    5: _second_time,
    6: _endings,
    7: _audiences,
    8: _firings,
    9: _last_activities,
}
