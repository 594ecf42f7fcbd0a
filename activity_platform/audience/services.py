"""What the steps of a command work with, and what they hand to each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg

from activity_platform.audience import attempts, users
from activity_platform.audience.interfaces import (
    FiringPublisher,
    MemberFileReader,
    OaLookup,
    ProfileSource,
    Storage,
    TriggerEvaluator,
    UserCache,
    UserUpserter,
)
from activity_platform.gateways import postgres
from activity_platform.gateways.queue import Queues


@dataclass(frozen=True)
class Services:
    """The surroundings of the commands.

    `retry_seconds` are the waits after failed attempts; a profile younger than `fresh` isn't asked for again.
    """

    database_url: str = field(repr=False)
    queues: Queues
    files: MemberFileReader
    storage: Storage
    profiles: ProfileSource
    cache: UserCache
    evaluate: TriggerEvaluator
    publish_firings: FiringPublisher
    retry_seconds: tuple[int, ...]
    fresh: timedelta
    clock: Callable[[], datetime]
    log: logging.Logger
    find_oa: OaLookup = users.find_oa
    upsert: UserUpserter = users.upsert_users

    def connect(self) -> psycopg.Connection:
        """A connection in autocommit. Raises `postgres.DatabaseAway`."""
        return postgres.connect(self.database_url, application_name="activity-platform audience")

    def is_last(self, attempt: int) -> bool:
        """Whether no further attempt follows this one."""
        return attempt >= attempts.attempt_limit(self.retry_seconds)


@dataclass(frozen=True)
class ImportRef:
    """A command under way, as one step hands it to the next. `moment`: see `result_files.message_moment`."""

    import_id: int
    command: str
    audience_id: int
    queue: str
    entry_id: str
    moment: int


@dataclass(frozen=True)
class MessageResult:
    """What became of a message, or of one attempt at it.

    `status`: as in the history `done`, `partial`, `skipped` or `failed` (it is a dead letter now); else
    `repeated` (it was done before), `gone` (it is not in its queue) or `waiting` (the attempt failed, and
    another one follows).
    """

    queue: str
    entry_id: str
    status: str
    message_id: str | None = None
    audience_id: int | None = None
    command: str | None = None
    reason: str | None = None
    error: str | None = None
    attempts: int = 0
    result_path: str | None = None
    rejects_path: str | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.status != "waiting"
