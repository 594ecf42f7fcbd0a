"""Streams on a real Valkey: what is read, what is finished, what is buried and what comes back."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from activity_platform.failures import UsageError
from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import (
    BAD_PAYLOAD,
    CREATE_AUDIENCE,
    DEAD_SUFFIX,
    LAST_ACTIVITY,
    MAX_PAYLOAD_BYTES,
    QUEUES,
    Burial,
    Entry,
    QueueAway,
    Queues,
    QueueStatus,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEAD = LAST_ACTIVITY + DEAD_SUFFIX


@pytest.fixture
def queues(redis_url: str) -> Iterator[Queues]:
    client = queue_module.connect(redis_url)
    yield Queues(client)
    client.close()


def only(queues: Queues) -> Entry:
    (entry,) = queues.peek(LAST_ACTIVITY).entries
    return entry


def dead_fields(queues: Queues) -> dict[bytes, bytes]:
    found: Any = queues.client.xrange(DEAD)
    ((_, fields),) = found
    return dict(fields)


def nothing(message_ids: list[str]) -> None:
    """For replays where no attempts are counted."""


def test_a_published_entry_is_read_until_it_is_finished(queues: Queues) -> None:
    entry_id = queues.publish(LAST_ACTIVITY, b'{"a":1}')
    expected = Entry(LAST_ACTIVITY, entry_id, b'{"a":1}', message_id=entry_id, original_id=entry_id)
    assert queues.peek(LAST_ACTIVITY).entries == (expected,)
    assert queues.get(LAST_ACTIVITY, entry_id) == expected

    assert queues.finish(LAST_ACTIVITY, [entry_id]) == 1
    assert queues.finish(LAST_ACTIVITY, [entry_id]) == 0
    assert queues.finish(LAST_ACTIVITY, []) == 0
    assert queues.peek(LAST_ACTIVITY).entries == ()
    assert queues.get(LAST_ACTIVITY, entry_id) is None


def test_pages_are_bounded_and_follow_each_other(queues: Queues) -> None:
    assert queues.publish_many(LAST_ACTIVITY, (str(number) for number in range(2_500))) == 2_500
    first = queues.peek(LAST_ACTIVITY, count=1_000)
    second = queues.peek(LAST_ACTIVITY, count=1_500, after=first.entries[-1].entry_id)
    assert [int(entry.payload) for entry in first.entries + second.entries] == list(range(2_500))
    assert (first.more, second.more) == (True, False)


def test_an_id_that_is_none_names_no_entry(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"{}")
    for entry_id in ("", "-", "+", "1", "1-", "1-1\n", "1-x", "9" * 21 + "-1", "١-١"):
        assert queues.get(LAST_ACTIVITY, entry_id) is None, entry_id


def test_entry_ids_sort_as_numbers() -> None:
    ordered = ["9-9", "9-10", "10-0", "10-1"]
    assert all(queue_module.id_order(one) < queue_module.id_order(two) for one, two in pairwise(ordered))


def test_a_producers_message_id_is_kept(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"{}", message_id="ข้อความ-1")
    entry = only(queues)
    assert (entry.message_id, entry.original_id, entry.problem) == ("ข้อความ-1", entry.entry_id, None)


@pytest.mark.parametrize("message_id", [b"", b"x" * 65, b"a\0b", b"\xff\xfe", "ข".encode() * 65])
def test_a_message_id_outside_its_bounds_makes_the_entry_invalid(queues: Queues, message_id: bytes) -> None:
    queues.client.xadd(LAST_ACTIVITY, {"payload": b"{}", "message_id": message_id})
    entry = only(queues)
    assert entry.problem is not None
    assert "message_id" in entry.problem
    assert entry.message_id == entry.entry_id


def test_message_ids_are_measured_in_characters(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"{}", message_id="ข" * 64)
    assert only(queues).problem is None


def test_an_entry_without_payload_or_with_a_vast_one_is_invalid(queues: Queues) -> None:
    queues.client.xadd(LAST_ACTIVITY, {"data": b"{}"})
    queues.client.xadd(LAST_ACTIVITY, {"payload": b"x" * (MAX_PAYLOAD_BYTES + 1)})
    queues.client.xadd(LAST_ACTIVITY, {"payload": b"x" * MAX_PAYLOAD_BYTES})
    problems = [entry.problem for entry in queues.peek(LAST_ACTIVITY).entries]
    assert problems == [
        "the entry has no field payload",
        f"the payload has {MAX_PAYLOAD_BYTES + 1} bytes, more than {MAX_PAYLOAD_BYTES}",
        None,
    ]


def test_bytes_that_are_no_text_hide_no_other_entry(redis_url: str) -> None:
    """S07: an address that asks for decoded answers would lose the whole page to one byte."""
    queues = Queues(queue_module.connect(redis_url + "?decode_responses=True"))
    for payload in (b"one", b"\xff\xfe", b"three"):
        queues.publish(LAST_ACTIVITY, payload)
    assert [entry.payload for entry in queues.peek(LAST_ACTIVITY).entries] == [b"one", b"\xff\xfe", b"three"]
    queues.client.close()


def test_a_buried_entry_is_a_dead_letter_with_its_bytes_and_reason(queues: Queues) -> None:
    entry_id = queues.publish(LAST_ACTIVITY, b"\xff\x00{", message_id="mine")
    burial = Burial(only(queues), BAD_PAYLOAD, "not JSON", attempts=3)
    assert queues.bury([burial], now=NOW) == 1
    assert queues.depth(LAST_ACTIVITY) == 0
    assert dead_fields(queues) == {
        b"payload": b"\xff\x00{",
        b"message_id": b"mine",
        b"entry_id": entry_id.encode(),
        b"attempts": b"3",
        b"reason": b"bad_payload",
        b"error": b"not JSON",
        b"failed_at": b"2026-03-01T12:00:00+00:00",
    }
    (letter,) = queues.dead(LAST_ACTIVITY)
    assert (letter.entry_id, letter.message_id, letter.attempts) == (entry_id, "mine", 3)
    assert (letter.reason, letter.error, letter.payload) == (BAD_PAYLOAD, "not JSON", b"\xff\x00{")


def test_burying_twice_makes_one_dead_letter(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"x")
    burial = Burial(only(queues), BAD_PAYLOAD, "bad")
    assert queues.bury([burial, burial], now=NOW) == 1
    assert queues.bury([burial], now=NOW) == 0
    assert len(list(queues.dead(LAST_ACTIVITY))) == 1
    assert queues.bury([], now=NOW) == 0


def test_a_payload_in_the_wrong_field_is_not_lost_with_the_entry(queues: Queues) -> None:
    queues.client.xadd(LAST_ACTIVITY, {"data": b"precious", "reason": b"theirs"})
    queues.bury([Burial(only(queues), BAD_PAYLOAD, "no payload")], now=NOW)
    fields = dead_fields(queues)
    assert (fields[b"payload"], fields[b"data"], fields[b"reason"]) == (b"", b"precious", b"bad_payload")


def test_an_entry_of_endless_fields_is_buried_like_any_other(queues: Queues) -> None:
    queues.client.xadd(LAST_ACTIVITY, {f"field{number}": b"x" for number in range(20_000)})
    assert queues.bury([Burial(only(queues), BAD_PAYLOAD, "no payload")], now=NOW) == 1
    assert queues.replay(LAST_ACTIVITY, forget=nothing).missing == ()
    assert queues.depth(LAST_ACTIVITY) == 1


def test_a_replayed_entry_keeps_its_message_and_the_time_of_the_first(queues: Queues) -> None:
    first_id = queues.publish(LAST_ACTIVITY, b"x")
    for _ in range(3):
        queues.bury([Burial(only(queues), BAD_PAYLOAD, "bad")], now=NOW)
        assert queues.replay(LAST_ACTIVITY, forget=nothing).message_ids == (first_id,)
        entry = only(queues)
        assert entry.entry_id != first_id
        assert (entry.message_id, entry.original_id, entry.payload) == (first_id, first_id, b"x")
        assert list(queues.dead(LAST_ACTIVITY)) == []


def test_replay_finds_letters_by_dead_entry_or_message_id(queues: Queues) -> None:
    for message_id in ("one", "two", "three", "four"):
        queues.publish(LAST_ACTIVITY, message_id, message_id=message_id)
    entries = queues.peek(LAST_ACTIVITY).entries
    queues.bury([Burial(entry, BAD_PAYLOAD, "bad") for entry in entries], now=NOW)
    dead_id = next(queues.dead(LAST_ACTIVITY)).dead_id

    forgotten: list[str] = []
    names = [dead_id, entries[1].entry_id, "three", "nobody"]
    replay = queues.replay(LAST_ACTIVITY, names, forget=forgotten.extend)

    assert (replay.message_ids, replay.missing) == (("one", "two", "three"), ("nobody",))
    assert forgotten == ["one", "two", "three"]
    assert [entry.payload for entry in queues.peek(LAST_ACTIVITY).entries] == [b"one", b"two", b"three"]
    assert [letter.message_id for letter in queues.dead(LAST_ACTIVITY)] == ["four"]


def test_attempts_are_forgotten_before_a_letter_goes_back(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"x")
    queues.bury([Burial(only(queues), BAD_PAYLOAD, "bad")], now=NOW)

    def fail(message_ids: list[str]) -> None:
        assert queues.depth(LAST_ACTIVITY) == 0
        raise RuntimeError("database away")

    with pytest.raises(RuntimeError):
        queues.replay(LAST_ACTIVITY, forget=fail)
    assert (queues.depth(LAST_ACTIVITY), len(list(queues.dead(LAST_ACTIVITY)))) == (0, 1)


def test_replay_ends_although_letters_come_back_at_once(queues: Queues) -> None:
    queues.publish_many(LAST_ACTIVITY, [b"x"] * 1_200)

    def bury_all(message_ids: list[str]) -> None:
        page = queues.peek(LAST_ACTIVITY, count=2_000)
        queues.bury([Burial(entry, BAD_PAYLOAD, "bad") for entry in page.entries], now=NOW)

    bury_all([])
    assert len(queues.replay(LAST_ACTIVITY, forget=bury_all).message_ids) == 1_200


def test_status_tells_depth_dead_letters_and_the_age_of_the_head(queues: Queues) -> None:
    milliseconds = int(time.time() * 1_000) - 90_000
    queues.client.xadd(CREATE_AUDIENCE, {"payload": b"1"}, id=f"{milliseconds}-0")
    queues.publish(CREATE_AUDIENCE, b"2")
    queues.publish(LAST_ACTIVITY, b"x")
    queues.bury([Burial(only(queues), BAD_PAYLOAD, "bad")], now=NOW)

    status = {line.queue: line for line in queues.status()}

    assert tuple(status) == QUEUES
    assert status[LAST_ACTIVITY] == QueueStatus(LAST_ACTIVITY, depth=0, dead=1, oldest_seconds=None)
    create = status[CREATE_AUDIENCE]
    assert (create.depth, create.dead) == (2, 0)
    assert create.oldest_seconds == pytest.approx(90, abs=5)
    assert queues.peek(CREATE_AUDIENCE).oldest_seconds == pytest.approx(90, abs=5)


def test_the_age_of_an_entry_from_the_future_is_nought(queues: Queues) -> None:
    queues.client.xadd(LAST_ACTIVITY, {"payload": b"1"}, id=f"{2**64 - 1}-1")
    assert queues.status([LAST_ACTIVITY])[0].oldest_seconds == 0


def test_people_may_enqueue_only_json_objects_on_queues_that_exist(queues: Queues) -> None:
    queues.enqueue(CREATE_AUDIENCE, '{"audienceId": 1}')
    (entry,) = queues.peek(CREATE_AUDIENCE).entries
    assert entry.payload == b'{"audienceId": 1}'

    vast = '{"a":"' + "x" * MAX_PAYLOAD_BYTES + '"}'
    for text in ("", "{", "[]", "1", '"x"', "{'a': 1}", vast, '{"\udcff": 1}', '{"a":' + "[" * 60_000):
        with pytest.raises(UsageError, match="payload"):
            queues.enqueue(CREATE_AUDIENCE, text)
    with pytest.raises(UsageError, match="choose one of line_user_last_activity, create_audience"):
        queues.enqueue("create_audiences", "{}")
    with pytest.raises(UsageError, match="no queue"):
        queues.replay("create_audiences", forget=nothing)
    assert queues.depth(CREATE_AUDIENCE) == 1


def test_the_policy_for_a_full_memory_is_told(queues: Queues) -> None:
    assert queues.maxmemory_policy() == "noeviction"


def test_a_full_memory_refuses_entries_in_one_line_and_loses_none(queues: Queues) -> None:
    queues.publish(LAST_ACTIVITY, b"x")
    queues.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(QueueAway, match="refused") as refused:
            queues.publish(LAST_ACTIVITY, b"y")
        with pytest.raises(QueueAway, match="refused"):
            queues.bury([Burial(only(queues), BAD_PAYLOAD, "bad")], now=NOW)
    finally:
        queues.client.config_set("maxmemory", "0")
    assert "\n" not in str(refused.value)
    assert (queues.depth(LAST_ACTIVITY), list(queues.dead(LAST_ACTIVITY))) == (1, [])


def test_an_outage_is_one_line_at_once_without_the_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    queues = Queues(queue_module.connect(f"redis://:s3cret@127.0.0.1:{port}/0"))
    started = time.monotonic()
    for call in (queues.status, queues.maxmemory_policy, lambda: queues.publish(LAST_ACTIVITY, b"x")):
        with pytest.raises(QueueAway, match="can't be reached") as outage:
            call()
        assert "s3cret" not in str(outage.value)
        assert "\n" not in str(outage.value)
    assert time.monotonic() - started < 1


def test_a_redis_that_never_answers_is_given_up_without_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """S04: the client's own defaults, a timeout and ten repeats, would take a minute."""
    assert queue_module.ANSWER_SECONDS < 5
    monkeypatch.setattr(queue_module, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        queues = Queues(queue_module.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        started = time.monotonic()
        with pytest.raises(QueueAway):
            queues.depth(LAST_ACTIVITY)
        assert time.monotonic() - started < 0.9


def test_an_entry_whose_answer_is_lost_is_not_added_again(queues: Queues, redis_url: str) -> None:
    with lossy_proxy(redis_url, lose_after=b"XADD") as url:
        unlucky = Queues(queue_module.connect(url))
        with pytest.raises(QueueAway):
            unlucky.publish(LAST_ACTIVITY, b"x")
        unlucky.client.close()
    assert queues.depth(LAST_ACTIVITY) == 1


@contextmanager
def lossy_proxy(redis_url: str, *, lose_after: bytes) -> Iterator[str]:
    """An address that leads to Redis; the line breaks before the answer to a request with these bytes."""
    target = urlsplit(redis_url)

    class Line(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((target.hostname, target.port)) as upstream:
                while request := self.request.recv(65_536):
                    upstream.sendall(request)
                    answer = upstream.recv(65_536)
                    if lose_after in request:
                        return
                    self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Line) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield target._replace(netloc=f":{target.password}@127.0.0.1:{server.server_address[1]}").geturl()
        server.shutdown()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:port/0", "http://127.0.0.1", "redis://h/?db=x"])
def test_an_address_that_is_none_is_wrong_use(url: str) -> None:
    with pytest.raises(UsageError, match="REDIS_URL"):
        queue_module.connect(url)


def test_digits_mean_the_number_they_spell() -> None:
    assert queue_module.payload_id("007") == queue_module.payload_id(7) == 7
    assert queue_module.payload_id(str(2**63 - 1)) == 2**63 - 1
    for text in ("0", "000", str(2**63)):
        with pytest.raises(ValueError, match="2\\^63"):
            queue_module.payload_id(text)
