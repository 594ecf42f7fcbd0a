"""What a cached copy of a line_user row says, and what it has to say once the row has moved.

A copy is a JSON object in camelCase or snake_case. It only hints at the row: one that is garbage, or belongs
to the same person in another OA, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from activity_platform.gateways.queue import PayloadId, payload_id
from activity_platform.gateways.user_cache import Replacement, UserCache
from activity_platform.last_activity.messages import UserKey

CAMEL_CASE = ("lastActivityType", "lastActivityStatus", "lastActivityPeriod", "lastActivityDate")
SNAKE_CASE = ("last_activity_type", "last_activity_status", "last_activity_period", "last_activity_date")


@dataclass(frozen=True, slots=True)
class UserRow:
    """The last activity that a row holds."""

    user: UserKey
    type: str | None
    status: str | None
    period: str | None
    date: datetime | None


class _Copy(msgspec.Struct):
    id: PayloadId | None = None
    organizationId: PayloadId | None = None  # noqa: N815
    organization_id: PayloadId | None = None
    lineOaId: PayloadId | None = None  # noqa: N815
    line_oa_id: PayloadId | None = None
    lastActivityDate: Any = None  # noqa: N815
    last_activity_date: Any = None

    def belongs_to(self, user: UserKey) -> bool:
        organization_id = self.organizationId or self.organization_id
        line_oa_id = self.lineOaId or self.line_oa_id
        return (
            organization_id is not None
            and line_oa_id is not None
            and payload_id(organization_id) == user.organization_id
            and payload_id(line_oa_id) == user.line_oa_id
        )


_copy_decoder = msgspec.json.Decoder(_Copy)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def row_id_in(copy: bytes, user: UserKey) -> int | None:
    """The row's id, if the copy is one of that user."""
    try:
        fields = _copy_decoder.decode(copy)
        return payload_id(fields.id) if fields.id is not None and fields.belongs_to(user) else None
    except (ValueError, RecursionError):
        return None


def renewed(copy: bytes, row: UserRow) -> bytes | None:
    """The copy with the row's last activity; None if it isn't that user's, or not older than the row.

    Everything else in it stays as it is written, to the byte.
    """
    try:
        known = _copy_decoder.decode(copy)
        if row.date is None or not known.belongs_to(row.user):
            return None
        date = _moment(known.lastActivityDate or known.last_activity_date)
        if date is not None and date >= row.date:
            return None
        fields: dict[str, Any] = dict(_fields_decoder.decode(copy))
    except (ValueError, RecursionError):
        return None
    names = SNAKE_CASE if known.line_oa_id is not None else CAMEL_CASE
    fields.update(zip(names, (row.type, row.status, row.period, row.date), strict=True))
    return msgspec.json.encode(fields)


def renew(cache: UserCache, rows: Iterable[UserRow], copies: Mapping[str, bytes]) -> None:
    """Gives the copies, read before the rows changed, the values of their rows afterwards.

    A copy that somebody replaced meanwhile is renewed from its new bytes, and deleted if it is replaced
    once more. One round trip; two when a copy was replaced.
    """
    by_person: dict[str, list[UserRow]] = {}
    for row in rows:
        by_person.setdefault(row.user.line_user_id, []).append(row)
    read_before = {person: copies[person] for person in by_person if person in copies}
    replaced = cache.replace(_replacements(read_before, by_person), last=False)
    cache.replace(_replacements(replaced, by_person), last=True)


def _replacements(
    copies: Mapping[str, bytes], by_person: Mapping[str, Sequence[UserRow]]
) -> dict[str, Replacement]:
    replacements = {}
    for person, copy in copies.items():
        for row in by_person[person]:
            if (new := renewed(copy, row)) is not None:
                replacements[person] = Replacement(copy, new)
    return replacements


def _moment(value: object) -> datetime | None:
    """A date of a copy; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if moment is None or moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=UTC)
