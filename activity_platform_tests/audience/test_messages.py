"""Payloads of the four queues: what counts as a message, and what is refused and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activity_platform.audience.messages import AUDIENCE_QUEUES, AudienceMessage, BadPayload, Command, decode
from activity_platform.gateways.queue import Entry

IDS = {"audienceId": 7, "lineOaId": 8, "organizationId": 9}
FILE = IDS | {"filePath": "private/x/members.csv"}
MOOKEPT = FILE | {"actionType": "add"}
BY_QUEUE: dict[str, dict[str, Any]] = {
    "create_audience": FILE,
    "update_audience": FILE,
    "delete_audience": IDS,
    "mookept_audience": MOOKEPT,
}


def read(queue: str, payload: Any) -> AudienceMessage:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return decode(Entry(queue, "1-0", data, "1-0", "1-0"))


def test_messages_of_equal_ids_are_ordered_create_update_mookept_delete() -> None:
    assert AUDIENCE_QUEUES == ("create_audience", "update_audience", "mookept_audience", "delete_audience")


@pytest.mark.parametrize(
    ("queue", "command", "path"),
    [
        ("create_audience", Command.CREATE, FILE["filePath"]),
        ("update_audience", Command.UPDATE, FILE["filePath"]),
        ("delete_audience", Command.DELETE, None),
        ("mookept_audience", Command.MOOKEPT_ADD, FILE["filePath"]),
    ],
)
def test_each_queue_has_its_command(queue: str, command: Command, path: str | None) -> None:
    assert read(queue, BY_QUEUE[queue]) == AudienceMessage(command, 7, 8, 9, path)


@pytest.mark.parametrize("action", ["remove", "ADD", " add", "x"])
def test_any_other_action_than_add_removes(action: str) -> None:
    assert read("mookept_audience", MOOKEPT | {"actionType": action}).command is Command.MOOKEPT_REMOVE


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1), ("1", 1), (2**63 - 1, 2**63 - 1), (str(2**63 - 1), 2**63 - 1)]
)
def test_ids_are_integers_or_the_same_as_digits(value: Any, number: int) -> None:
    for name in IDS:
        message = read("delete_audience", IDS | {name: value})
        assert number in (message.audience_id, message.line_oa_id, message.organization_id)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        2**63,
        10**30,
        1.0,
        True,
        None,
        [],
        {},
        "",
        "0",
        "-1",
        "+1",
        "1.0",
        " 1",
        "1\n",
        "x",
        "٧",
        str(2**63),
    ],
)
def test_anything_else_is_no_id(value: Any) -> None:
    for queue, payload in BY_QUEUE.items():
        for name in IDS:
            with pytest.raises(BadPayload) as refused:
                read(queue, payload | {name: value})
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("queue", AUDIENCE_QUEUES)
def test_every_named_key_must_be_there(queue: str) -> None:
    for name in BY_QUEUE[queue]:
        with pytest.raises(BadPayload):
            read(queue, {key: value for key, value in BY_QUEUE[queue].items() if key != name})


def test_unknown_keys_and_a_delete_file_are_ignored() -> None:
    assert read("delete_audience", FILE | {"x": [{}], "filePath": 1}).file_path is None


@pytest.mark.parametrize(
    "path", ["", None, 1, "a\0b", "x" * 1025, "ก" * 342, "s3://", "s3://bucket", "s3:///key", "s3://b/"]
)
def test_paths_that_no_object_has_are_refused(path: Any) -> None:
    with pytest.raises(BadPayload):
        read("create_audience", FILE | {"filePath": path})


@pytest.mark.parametrize("path", ["x" * 1024, "ก" * 341, "s3://b/k", "a+b%20 c", "/lead", "line\nbreak"])
def test_paths_are_taken_literally(path: str) -> None:
    assert read("create_audience", FILE | {"filePath": path}).file_path == path


@pytest.mark.parametrize("action", [None, 1, True, "", "a\0", "x" * 65])
def test_an_action_that_is_no_text_is_refused(action: Any) -> None:
    with pytest.raises(BadPayload):
        read("mookept_audience", MOOKEPT | {"actionType": action})


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{not json",
        b"\xff\xfe",
        b'{"audienceId":1,"lineOaId":1,"organizationId":1,"filePath":"\\ud83d"}',
        b'{"audienceId":1,"lineOaId":1,"organizationId":1,"filePath":"\xff"}',
        b'{"audienceId":1,"lineOaId":1,"organizationId":1,"filePath":"x","y":' + b"[" * 50_000,
    ],
)
def test_what_is_no_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(BadPayload):
        read("create_audience", payload)


def test_an_entry_that_is_no_message_is_refused() -> None:
    with pytest.raises(BadPayload, match="no field payload"):
        decode(Entry("create_audience", "1-0", b"", "1-0", "1-0", problem="the entry has no field payload"))
