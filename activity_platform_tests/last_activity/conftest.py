"""A database of users, a Valkey of messages, and words to speak of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, DeadLetter, Queues
from activity_platform.last_activity.drain import STEP_ENTRIES, DrainResult, drain
from activity_platform.last_activity.messages import EPOCH

Row = tuple[str | None, str | None, str | None, datetime | None]
NEVER: Row = (None, None, None, None)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def line_user_id(number: int) -> str:
    return f"U{number:032x}"


def payload(user: str, type_: str = "message", status: str = "active", **others: Any) -> dict[str, Any]:
    message = {
        "lineUserId": user,
        "lineOaId": 1,
        "organizationId": 1,
        "activityType": type_,
        "activityStatus": status,
    }
    return message | others


@dataclass
class World:
    """Users 1, 2, … are rows of OA 1 in organization 1 unless told otherwise."""

    database_url: str
    connection: psycopg.Connection
    queues: Queues

    def add(self, *numbers: int, oa: int = 1, organization: int = 1, row: Row = NEVER) -> None:
        for number in numbers:
            self.connection.execute(
                """INSERT INTO line_user (organization_id, line_oa_id, line_user_id, last_activity_type,
                   last_activity_status, last_activity_period, last_activity_date)
                   VALUES (%s, %s, %s, %s, %s, %s, %s)""",
                [organization, oa, line_user_id(number), *row],
            )

    def row(self, number: int, oa: int = 1) -> Row:
        found: Row | None = self.connection.execute(
            """SELECT last_activity_type, last_activity_status, last_activity_period, last_activity_date
               FROM line_user WHERE line_oa_id = %s AND line_user_id = %s""",
            [oa, line_user_id(number)],
        ).fetchone()
        assert found is not None
        return found

    def row_id(self, number: int, oa: int = 1) -> int:
        found = self.connection.execute(
            "SELECT id FROM line_user WHERE line_oa_id = %s AND line_user_id = %s", [oa, line_user_id(number)]
        ).fetchone()
        assert found is not None
        return int(found[0])

    def says(
        self, number: int, type_: str = "message", *, when: datetime | None = None, **others: Any
    ) -> str:
        """Queues an activity, now or as if it had been queued then; returns the entry's id."""
        return self.queue(json.dumps(payload(line_user_id(number), type_, **others)), when=when)

    def queue(self, data: bytes | str, *, when: datetime | None = None, **fields: str) -> str:
        microseconds = 0 if when is None else round((when - EPOCH).total_seconds() * 1e6)
        entry_id = "*" if when is None else f"{microseconds // 1000}-{microseconds % 1000}"
        entry: dict[Any, Any] = {"payload": data, **fields}
        added: Any = self.queues.client.xadd(LAST_ACTIVITY, entry, id=entry_id)
        return str(added.decode())

    def cache(self, number: int, copy: dict[str, Any] | bytes | str, *, seconds: int = 3600) -> None:
        data = json.dumps(copy) if isinstance(copy, dict) else copy
        self.queues.client.set(f"LINE_USER:{line_user_id(number)}", data, ex=seconds)

    def cached(self, number: int) -> Any:
        copy: Any = self.queues.client.get(f"LINE_USER:{line_user_id(number)}")
        return None if copy is None else json.loads(copy)

    def camel_copy(self, number: int, **others: Any) -> dict[str, Any]:
        own = {"id": self.row_id(number), "organizationId": 1, "lineOaId": 1}
        return own | {"lineUserId": line_user_id(number)} | others

    def drain(self, *, step_entries: int = STEP_ENTRIES) -> DrainResult:
        return drain(self.database_url, self.queues, step_entries=step_entries)

    def waiting(self) -> int:
        return self.queues.depth(LAST_ACTIVITY)

    def dead(self) -> list[DeadLetter]:
        return list(self.queues.dead(LAST_ACTIVITY))


@pytest.fixture
def world(database_url: str, connection: psycopg.Connection, redis_url: str) -> Iterator[World]:
    connection.execute("SET timezone = 'UTC'")
    client = queue_module.connect(redis_url)
    yield World(database_url, connection, Queues(client))
    client.close()


def counts(result: DrainResult) -> tuple[int, int, int, int, int]:
    """read, updated, stale, unknown, buried"""
    return (result.read, result.updated, result.stale, result.unknown, result.buried)
