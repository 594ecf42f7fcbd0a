"""What makes an entry a last-activity message, and when it happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activity_platform.gateways.queue import LAST_ACTIVITY, MAX_PAYLOAD_BYTES, Entry
from activity_platform.last_activity.messages import Activity, InvalidMessage, UserKey, decode, event_time
from activity_platform_tests.last_activity.conftest import at, line_user_id, payload

USER = line_user_id(0xAB)


def entry(data: Any, entry_id: str = "1772366400000-7") -> Entry:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Entry(LAST_ACTIVITY, entry_id, raw, entry_id, entry_id)


def test_a_message_names_a_user_what_they_did_and_when_it_was_queued() -> None:
    one = entry(payload(USER, "click", "inactive", more=[1], lineOaId="12", organizationId=2**63 - 1))
    assert decode(one) == Activity(
        one, UserKey(12, 2**63 - 1, USER), "click", "inactive", at("2026-03-01T12:00:00.000007")
    )


@pytest.mark.parametrize(
    "name", ["lineUserId", "lineOaId", "organizationId", "activityType", "activityStatus"]
)
def test_every_field_is_required(name: str) -> None:
    message = payload(USER)
    del message[name]
    with pytest.raises(InvalidMessage, match=name):
        decode(entry(message))


BAD_IDS: list[Any] = [0, -1, 2**63, 1.0, True, None, "", "1 ", "1\n", "-1", "0", "x", "١", "9" * 20, [1], {}]
BAD_TEXTS: list[Any] = ["", "x" * 65, "a\0", 1, None]
BAD_STATUSES: list[Any] = ["", "Active", "away", "active\n", None, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lineOaId", value) for value in BAD_IDS),
        *(("organizationId", value) for value in BAD_IDS),
        *(("lineUserId", value) for value in BAD_TEXTS),
        *(("activityType", value) for value in BAD_TEXTS),
        *(("activityStatus", value) for value in BAD_STATUSES),
    ],
)
def test_a_value_out_of_bounds_makes_the_message_invalid(name: str, value: Any) -> None:
    with pytest.raises(InvalidMessage, match=name + "|an id is not"):
        decode(entry(payload(USER) | {name: value}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{not json",
        b"[]",
        b"null",
        b"\xff\xfe",
        json.dumps(payload(USER)).encode("utf-16"),
        json.dumps(payload(USER)).encode().replace(USER.encode(), b"\xff\xfe"),
        json.dumps(payload(USER)).encode().replace(USER.encode(), b"\\ud800"),
        json.dumps(payload(USER)).encode().replace(USER.encode(), b"\xed\xa0\x80"),
        json.dumps(payload(USER)).encode()[:-1] + b',"deep":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
def test_bytes_that_are_no_message_are_invalid(data: bytes) -> None:
    assert len(data) <= MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidMessage):
        decode(entry(data))


def test_an_error_repeats_nothing_of_the_message() -> None:
    for name in payload(USER):
        for wrong in (USER * 3, USER + "\0", [USER]):
            with pytest.raises(InvalidMessage) as invalid:
                decode(entry(payload("someone else") | {name: wrong}))
            assert USER not in str(invalid.value)
            assert "\n" not in str(invalid.value)


def test_texts_are_measured_in_characters_and_kept_as_they_are() -> None:
    activity = decode(entry(payload(" ü" * 32, "ส" * 64)))
    assert (activity.user.line_user_id, activity.type) == (" ü" * 32, "ส" * 64)


def test_the_time_is_that_of_the_first_entry_with_the_sequence_as_microseconds() -> None:
    assert event_time("1772366400123-0") == at("2026-03-01T12:00:00.123000")
    assert event_time("1772366400123-45") == at("2026-03-01T12:00:00.123045")
    assert event_time("1772366400123-999") == event_time("1772366400123-18446744073709551615")
    assert event_time("0-1") == at("1970-01-01T00:00:00.000001")
    replayed = Entry(LAST_ACTIVITY, "2-0", json.dumps(payload(USER)).encode(), "m", "1772366400000-0")
    assert decode(replayed).at == at("2026-03-01T12:00:00")


def test_a_time_beyond_the_calendar_is_invalid() -> None:
    assert event_time("253402300799999-999") == at("9999-12-31T23:59:59.999999")
    for entry_id in ("253402300800000-0", f"{2**64 - 1}-1", "9" * 20 + "-0"):
        with pytest.raises(InvalidMessage, match="9999"):
            event_time(entry_id)
