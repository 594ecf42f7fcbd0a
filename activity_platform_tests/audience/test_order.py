"""Which messages are asked for: the oldest unfinished one of each audience, across the four queues."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from activity_platform.audience import order
from activity_platform.audience.attempts import Attempts, due_at, end_attempt, start_attempt
from activity_platform.audience.order import due, read_heads
from activity_platform.audience.reasons import Failure, Reason
from activity_platform.gateways.queue import QUEUES, Entry, Page, id_order

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
IDS = {"lineOaId": 1, "organizationId": 1, "filePath": "x", "actionType": "add"}


class Streams:
    """Queues in memory that hold what they are given."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = defaultdict(list)

    def add(self, queue: str, entry_id: str, audience_id: object, original_id: str | None = None) -> None:
        payload = json.dumps(IDS | {"audienceId": audience_id}).encode()
        self._entries[queue].append(Entry(queue, entry_id, payload, entry_id, original_id or entry_id))

    def peek(self, queue: str, *, count: int = 1000, after: str | None = None) -> Page:
        assert queue in QUEUES
        behind = [
            entry
            for entry in self._entries[queue]
            if after is None or id_order(entry.entry_id) > id_order(after)
        ]
        return Page(tuple(behind[:count]), len(behind) > count, NOW)


def heads(streams: Streams) -> list[tuple[int, str, str]]:
    found = read_heads(streams).candidates
    return [(one.message.audience_id, one.entry.queue, one.entry.entry_id) for one in found]


def test_each_audience_has_its_oldest_message_and_the_oldest_comes_first() -> None:
    streams = Streams()
    streams.add("create_audience", "20-0", 1)
    streams.add("create_audience", "9-0", 2)
    streams.add("update_audience", "10-0", 1)
    streams.add("delete_audience", "10-1", 3)
    assert heads(streams) == [
        *((2, "create_audience", "9-0"), (1, "update_audience", "10-0")),
        (3, "delete_audience", "10-1"),
    ]


def test_messages_of_equal_ids_come_as_create_update_mookept_delete() -> None:
    queues = ["delete_audience", "mookept_audience", "update_audience", "create_audience"]
    streams = Streams()
    for queue in queues:
        streams.add(queue, "5-0", 1)
        assert heads(streams) == [(1, queue, "5-0")]


def test_a_replayed_message_keeps_its_place() -> None:
    streams = Streams()
    streams.add("update_audience", "10-0", 1)
    streams.add("create_audience", "99-0", 1, original_id="9-0")
    assert heads(streams) == [(1, "create_audience", "99-0")]


def test_what_is_no_message_is_told_apart() -> None:
    streams = Streams()
    streams.add("create_audience", "1-0", None)
    streams.add("create_audience", "2-0", 1)
    found = read_heads(streams)
    assert [entry.entry_id for entry in found.undecodable] == ["1-0"]
    assert [one.entry.entry_id for one in found.candidates] == ["2-0"]
    assert not found.empty
    assert read_heads(Streams()).empty


def test_a_long_queue_of_one_audience_hides_no_other() -> None:
    streams = Streams()
    for number in range(5_000):
        streams.add("create_audience", f"{number}-0", 1)
    streams.add("create_audience", "6000-0", 2)
    assert heads(streams) == [(1, "create_audience", "0-0"), (2, "create_audience", "6000-0")]


def test_nothing_is_said_of_what_is_newer_than_the_end_of_a_cut_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST_ENTRIES", 1_000)
    streams = Streams()
    for number in range(1_001):
        streams.add("create_audience", f"{number}-0", 1 if number < 1_000 else 2)
    # An older create of audience 2 may stand behind the look's end; of audience 3 nothing can.
    streams.add("update_audience", "1001-0", 2)
    streams.add("update_audience", "999-0", 3)
    assert heads(streams) == [(1, "create_audience", "0-0"), (3, "update_audience", "999-0")]


def attempts(number: int, *, failed: float | None = None, beat: float | None = None) -> Attempts:
    """`failed` or `beat`: seconds before NOW."""
    ago = NOW - timedelta(seconds=failed or 3600)
    heartbeat = None if beat is None else NOW - timedelta(seconds=beat)
    return Attempts("create_audience", "m", number, None, ago, heartbeat)


@pytest.mark.parametrize(
    ("known", "seconds"),
    [
        (attempts(1, failed=5), 5),
        (attempts(2, failed=5), 55),
        (attempts(3, failed=5), -5),  # used up: buried at once
        (attempts(9, failed=5), -5),
        (attempts(1, beat=1), 14),  # killed, or still at work
        (attempts(2, beat=1), 59),
        (attempts(3, beat=1), 14),
    ],
)
def test_a_failed_attempt_waits_and_a_silent_one_is_given_time(known: Attempts, seconds: float) -> None:
    assert due_at(known, (10, 60)) == NOW + timedelta(seconds=seconds)


def test_only_what_is_due_is_asked_for(connection: psycopg.Connection) -> None:
    streams = Streams()
    for number in (1, 2, 3):
        streams.add("create_audience", f"{number}-0", number)
    for message_id, ago in (("2-0", 5), ("3-0", 15)):
        then = NOW - timedelta(seconds=ago)
        assert start_attempt(connection, "create_audience", message_id, now=then) == 1
        failure = Failure(Reason.FILE_NOT_FOUND, "not there: yet")
        end_attempt(connection, "create_audience", message_id, failure, now=then)
    candidates = read_heads(streams).candidates
    asked = due(connection, candidates, retry_seconds=(10,), now=NOW)
    assert [one.entry.entry_id for one in asked] == ["1-0", "3-0"]
