"""Audiences as their surroundings see them: the CMS on one side, the multicast on the other."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from activity_platform.audience.integration import open_services
from activity_platform.audience.member_csv import MEMBERS_HEADER
from activity_platform.audience.profiles import FetchPolicy
from activity_platform.audience.services import MessageResult, Services
from activity_platform.audience.worker import process_queues
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.gateways.queue import DeadLetter
from activity_platform.settings import Settings
from activity_platform_tests.simulated_line import TOKEN

HASTY = FetchPolicy(attempts=2, first_wait=0.01, jitter=0.01)
LOG = logging.getLogger("tests")


class Stuck(Exception):
    """The queues didn't get empty though nothing was due for long."""


@dataclass
class World:
    """One organization with an OA. `services` are the worker's."""

    connection: psycopg.Connection
    services: Services
    store: ObjectStore
    organization_id: int = 5
    line_oa_id: int = 0
    hash: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        self.line_oa_id = self.add_oa(self.hash)

    def add_oa(self, oa_hash: str, token: str | None = TOKEN) -> int:
        return self._id(
            "INSERT INTO line_oa (organization_id, hash, channel_access_token)"
            " VALUES (%s, %s, %s) RETURNING id",
            [self.organization_id, oa_hash, token],
        )

    def add_audience(self, info: Any = None, *, line_oa_id: int | None = None) -> int:
        return self._id(
            "INSERT INTO audience (organization_id, line_oa_id, name, info)"
            " VALUES (%s, %s, 'VIP', %s) RETURNING id",
            [self.organization_id, line_oa_id or self.line_oa_id, None if info is None else Jsonb(info)],
        )

    def add_users(
        self, line_user_ids: Sequence[str], audience_ids: Sequence[int] = (), *, fresh: bool = False
    ) -> None:
        self.connection.execute(
            "INSERT INTO line_user"
            " (organization_id, line_oa_id, line_user_id, audience_ids, profile_fetched_at)"
            " SELECT %s, %s, id, %s::bigint[], CASE WHEN %s THEN now() END FROM unnest(%s::text[]) AS id",
            [self.organization_id, self.line_oa_id, list(audience_ids), fresh, list(line_user_ids)],
        )

    def add_rule(self, audience_id: int, on_event: str, conditions: Any = None, **columns: Any) -> int:
        row = {
            "organization_id": self.organization_id,
            "line_oa_id": self.line_oa_id,
            "kind": "audience_membership",
            "enabled": True,
        } | columns
        return self._id(
            "INSERT INTO trigger_rule"
            " (organization_id, line_oa_id, kind, audience_id, on_event, conditions, enabled)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING id",
            [
                *(row["organization_id"], row["line_oa_id"], row["kind"], audience_id, on_event),
                *(Jsonb({} if conditions is None else conditions), row["enabled"]),
            ],
        )

    def upload(self, content: bytes | Iterable[str], path: str | None = None) -> str:
        path = path or f"private/{self.hash}/upload/{secrets.token_hex(4)}.csv"
        data = content if isinstance(content, bytes) else "\n".join([MEMBERS_HEADER, *content]).encode()
        self.store.put(path, data, content_type="text/csv")
        return path

    def send(
        self, queue: str, audience_id: int, content: bytes | Iterable[str] | None = None, **more: Any
    ) -> str:
        """Uploads the file and puts the message on its queue; returns the entry id."""
        message_id = more.pop("message_id", None)
        payload = {
            "audienceId": audience_id,
            "lineOaId": self.line_oa_id,
            "organizationId": self.organization_id,
        } | more
        if content is not None:
            payload["filePath"] = self.upload(content)
        return self.services.queues.publish(queue, json.dumps(payload), message_id=message_id)

    def create(self, audience_id: int, content: bytes | Iterable[str], **more: Any) -> str:
        return self.send("create_audience", audience_id, content, **more)

    def update(self, audience_id: int, content: bytes | Iterable[str], **more: Any) -> str:
        return self.send("update_audience", audience_id, content, **more)

    def delete(self, audience_id: int, **more: Any) -> str:
        return self.send("delete_audience", audience_id, **more)

    def mookept(self, audience_id: int, content: bytes | Iterable[str], action: str, **more: Any) -> str:
        return self.send("mookept_audience", audience_id, content, actionType=action, **more)

    def process(self) -> list[MessageResult]:
        """Every attempt until the queues are empty."""

        def sleep(_: float) -> None:
            raise Stuck

        return list(process_queues(self.services, sleep=sleep))

    def members(self, audience_id: int) -> list[str]:
        rows = self.connection.execute(
            "SELECT line_user_id FROM line_user WHERE line_oa_id = %s AND audience_ids @> ARRAY[%s]::bigint[]"
            ' ORDER BY line_user_id COLLATE "C"',
            [self.line_oa_id, audience_id],
        )
        return [row[0] for row in rows]

    def info(self, audience_id: int) -> Any:
        return self._value("SELECT info FROM audience WHERE id = %s", audience_id)

    def csv(self, path: str) -> list[str]:
        header, *lines = self.store.get(path, most_bytes=10**9).decode().split("\n")
        assert header == MEMBERS_HEADER
        assert lines.pop() == ""
        return lines

    def rejects(self, audience_id: int) -> list[str]:
        """The lines of the newest import's rejects, without the header."""
        path = self.imports(audience_id)[-1]["rejects_path"]
        return self.store.get(path, most_bytes=10**9).decode().splitlines()[1:]

    def imports(self, audience_id: int) -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT * FROM audience_import WHERE audience_id = %s ORDER BY id", [audience_id])
            return cursor.fetchall()

    def dead(self, queue: str) -> list[DeadLetter]:
        return list(self.services.queues.dead(queue))

    def firings(self) -> list[tuple[int, str, str]]:
        """(rule, LINE id, event) in the order of firing."""
        return self.connection.execute(
            "SELECT f.rule_id, u.line_user_id, f.on_event FROM trigger_firing f"
            " JOIN line_user u ON u.id = f.user_id ORDER BY f.id"
        ).fetchall()

    def user(self, line_user_id: str) -> Mapping[str, Any]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            (row,) = cursor.execute("SELECT * FROM line_user WHERE line_user_id = %s", [line_user_id])
            return row

    def count(self, table: str) -> int:
        statement = psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(table))
        return int(self._value(statement))

    def assert_consistent(self, audience_id: int, members: Iterable[str]) -> None:
        """Invariant 7: the rows, the CSV and the count in info say the same; nothing is left half done."""
        expected = sorted(members)
        assert self.members(audience_id) == expected
        info = self.info(audience_id)
        assert self.csv(info["filePath"]) == expected
        assert info["members"] == len(expected)
        assert self.count("audience_change") == 0

    def _id(self, statement: Any, values: Sequence[Any]) -> int:
        return int(self._value(statement, *values))

    def _value(self, statement: Any, *values: Any) -> Any:
        ((value,),) = self.connection.execute(statement, values)
        return value


@contextlib.contextmanager
def world_of(settings: Settings, connection: psycopg.Connection) -> Iterator[World]:
    with open_services(settings, log=LOG, policy=HASTY) as services:
        yield World(
            connection, services, ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
        )
