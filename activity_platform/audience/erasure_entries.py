"""Entries of the streams that name a user or an official account: queues, dead letters, sent firings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from activity_platform.audience.firings import STREAM
from activity_platform.audience.member_ids import is_member_id
from activity_platform.audience.messages import AUDIENCE_QUEUES
from activity_platform.gateways.queue import DEAD_SUFFIX, QUEUES, Entry, Queues

Names = Callable[[bytes], bool]

WAITING = (*QUEUES, STREAM)
DEAD = tuple(queue + DEAD_SUFFIX for queue in QUEUES)


def erase_entries(queues: Queues, streams: tuple[str, ...], names: Names) -> int:
    """Deletes the entries of the streams whose payload `names` somebody; returns how many there were."""
    return sum(
        queues.finish(stream, [entry.entry_id for entry in page if names(entry.payload)])
        for stream in streams
        for page in _pages(queues, stream)
    )


def count_entries(queues: Queues, streams: tuple[str, ...], names: Names) -> int:
    """How many entries `erase_entries` would delete."""
    return sum(
        names(entry.payload) for stream in streams for page in _pages(queues, stream) for entry in page
    )


def uploads_in(queues: Queues, line_oa_id: int) -> set[str]:
    """The files that messages of the OA name which wait for a run, or for people among the dead letters."""
    return {
        path
        for queue in AUDIENCE_QUEUES
        for stream in (queue, queue + DEAD_SUFFIX)
        for page in _pages(queues, stream)
        for entry in page
        if (body := _object(entry.payload)) and _is_id(body.get("lineOaId"), line_oa_id)
        if isinstance(path := body.get("filePath"), str)
    }


def naming_user(line_oa_id: int, line_user_id: str) -> Names:
    """Whether a payload names the user of that OA. One that can't be read, or has the id in another field,
    names the user if the id stands anywhere in it and no other OA does."""

    def names(payload: bytes) -> bool:
        body = _object(payload) or {}
        if "lineOaId" in body and not _is_id(body["lineOaId"], line_oa_id):
            return False
        if body.get("lineUserId") == line_user_id:
            return True
        return is_member_id(line_user_id) and line_user_id.encode() in payload

    return names


def naming_oa(line_oa_id: int) -> Names:
    """Whether a payload is about that OA."""
    return lambda payload: _is_id((_object(payload) or {}).get("lineOaId"), line_oa_id)


def _pages(queues: Queues, stream: str) -> Iterator[tuple[Entry, ...]]:
    after = None
    while True:
        page = queues.peek(stream, after=after)
        if page.entries:
            yield page.entries
            after = page.entries[-1].entry_id
        if not page.more:
            return


def _object(payload: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_id(value: object, wanted: int) -> bool:
    return str(value).isdecimal() and int(str(value)) == wanted
