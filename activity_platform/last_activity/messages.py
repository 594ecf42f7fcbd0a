"""What an entry of `line_user_last_activity` says: who did what, when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from activity_platform.gateways.queue import Entry, PayloadId, PayloadText, id_order, payload_id

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MICROSECOND = 999  # of the millisecond that an entry id names

# Not an enumeration: its error would repeat the value, which may be a person's id in the wrong field.
_Status: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(in)?active\Z")]


class InvalidMessage(ValueError):
    """The entry says nothing that could ever be done. The text repeats no value of it."""


class UserKey(NamedTuple):
    """A LINE user within an OA of an organization, as messages name it."""

    line_oa_id: int
    organization_id: int
    line_user_id: str


@dataclass(frozen=True, slots=True)
class Activity:
    """One message. `at` is when the entry that first held it was queued."""

    entry: Entry
    user: UserKey
    type: str
    status: str
    at: datetime


class _Payload(msgspec.Struct, rename="camel"):
    line_user_id: PayloadText
    line_oa_id: PayloadId
    organization_id: PayloadId
    activity_type: PayloadText
    activity_status: _Status


_decoder = msgspec.json.Decoder(_Payload)


def decode(entry: Entry) -> Activity:
    """The entry's message. Raises `InvalidMessage`."""
    if entry.problem:
        raise InvalidMessage(entry.problem)
    try:
        payload = _decoder.decode(entry.payload)
        user = UserKey(
            payload_id(payload.line_oa_id), payload_id(payload.organization_id), payload.line_user_id
        )
    except RecursionError:
        raise InvalidMessage("the payload is nested too deeply") from None
    except ValueError as error:  # msgspec's errors are ValueErrors, too
        raise InvalidMessage(f"the payload is invalid: {error}") from None
    return Activity(
        entry, user, payload.activity_type, payload.activity_status, event_time(entry.original_id)
    )


def event_time(original_id: str) -> datetime:
    """The milliseconds of the id, plus its sequence, at most 999, as microseconds.

    Raises `InvalidMessage` for an id, chosen by a producer, beyond the year 9999.
    """
    milliseconds, sequence = id_order(original_id)
    try:
        return EPOCH + timedelta(milliseconds=milliseconds, microseconds=min(sequence, LAST_MICROSECOND))
    except OverflowError:
        raise InvalidMessage("the entry's id lies beyond the year 9999") from None
