"""What the commands need of their surroundings, each as narrow as its use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import psycopg

from activity_platform.audience.member_file import MemberFile
from activity_platform.audience.profiles import Answers, FetchCounts
from activity_platform.gateways.line_api import Profile


@dataclass(frozen=True)
class LineOa:
    """An official account. `hash` is its folder in the object storage; the token may be empty."""

    line_oa_id: int
    organization_id: int
    hash: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class MembershipChange:
    """A command whose added and removed users are stored as the plan `audience_change` of `import_id`."""

    import_id: int
    audience_id: int
    line_oa_id: int
    organization_id: int
    queue: str
    message_id: str


class MemberFileReader(Protocol):
    """Reads an uploaded file and understands it; `again` may hand out what the last `read` of it found."""

    def read(self, path: str, /) -> MemberFile: ...

    def again(self, path: str, /) -> MemberFile: ...


class Storage(Protocol):
    """Where result files go: a write replaces the file as a whole."""

    def put(self, path: str, data: bytes, /, *, content_type: str) -> None: ...

    def uri(self, path: str, /) -> str: ...


class OaLookup(Protocol):
    """The organization's OA of that id, with the token that it has now."""

    def __call__(
        self, connection: psycopg.Connection, line_oa_id: int, organization_id: int, /
    ) -> LineOa | None: ...


class ProfileSource(Protocol):
    """Asks LINE for users and hands the answers on in chunks as they come.

    Raises `line_api.Refused` when LINE won't answer this OA any further.
    """

    def fetch(
        self, oa: LineOa, user_ids: Iterable[str], keep: Callable[[Answers], None], /
    ) -> FetchCounts: ...


class UserUpserter(Protocol):
    """Creates or refreshes the users of an OA, without touching what audiences they are in."""

    def __call__(
        self, connection: psycopg.Connection, oa: LineOa, profiles: Sequence[Profile], /, *, now: datetime
    ) -> None: ...


class TriggerEvaluator(Protocol):
    """Records what the change fires, within the caller's transaction; returns how many firings."""

    def __call__(
        self, connection: psycopg.Connection, change: MembershipChange, /, *, now: datetime
    ) -> int: ...


class UserCache(Protocol):
    """Other flows' cached copies of users."""

    def forget(self, line_user_ids: Sequence[str], /) -> None: ...


class FiringPublisher(Protocol):
    """Sends what was fired and not yet sent."""

    def __call__(self, connection: psycopg.Connection, /, *, now: datetime) -> object: ...
