"""deploy/roles.sql: each program works as its role, and is refused what is none of its business."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors, sql

from activity_platform import health, migrations
from activity_platform.activity import edges, event_log, events, rollup
from activity_platform.activity.maintenance import maintain_log
from activity_platform.doctor import Status, examine
from activity_platform.gateways import postgres
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues, connect
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.writer import Writer
from activity_platform.last_activity.drain import drain
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.docs.markdown import PROJECT

ROLES = ("activity_owner", "activity_ingest", "activity_ranker", "activity_fold", "activity_dagster")
SCRIPT = (PROJECT / "deploy" / "roles.sql").read_text()
PASSWORD = "of-a-test"
LINE_USER = "U0123456789abcdef0123456789abcdef"
SAVE = b'{"events": [{"verb": "save", "object_type": "event", "object_id": "e1"}]}'

ADD_EVENT = (
    "INSERT INTO activity_events (user_id, verb, object_type, object_id) VALUES ('b', 'save', 'event', 'e1')"
)

#: What a role must not do, though it works with the same tables.
REFUSED = {
    "activity_ingest": (
        "SELECT user_id FROM activity_events",
        "UPDATE activity_events SET verb = 'save'",
        "DELETE FROM activity_events",
        "TRUNCATE activity_events",
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " VALUES ('u', 'save', 'event', 'e', now() - interval '1 day')",
        "UPDATE interaction_edges SET weight = 100",
        "UPDATE activity_rollup_state SET watermark = now()",
        "SELECT FROM line_user",
        "SELECT FROM line_oa",
        "CREATE TABLE mine (id bigint)",
    ),
    "activity_ranker": (
        "SELECT FROM activity_events LIMIT 1",
        "SELECT created_at FROM activity_events_default",
        "UPDATE interaction_edges SET weight = 100",
        "SELECT FROM idempotency_key",
        "SELECT FROM line_user",
        "CREATE TABLE mine (id bigint)",
    ),
    "activity_fold": (
        ADD_EVENT,
        "DELETE FROM activity_events",
        "DELETE FROM interaction_edges",
        "DROP TABLE activity_events_default",
        "SELECT FROM line_user",
        "SELECT FROM line_oa",
    ),
    "activity_dagster": (
        "CREATE ROLE mine",
        "CREATE DATABASE mine",
        "ALTER SYSTEM SET fsync = off",
        "SELECT FROM pg_authid",
        "COPY line_user TO '/tmp/line_user'",
    ),
}


@pytest.fixture
def logins(stack: Stack, database_url: str) -> Iterator[dict[str, str]]:
    """The database's address for each role, by a login made as the file says."""
    with psycopg.connect(database_url, autocommit=True) as server:
        server.execute(SCRIPT)
        server.execute(SCRIPT)  # a second time changes nothing
        for role in ROLES:
            make_login(server, role)
        try:
            yield {role: address(database_url, role) for role in ROLES}
        finally:
            for role in ROLES:
                server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(login(role))))


def login(role: str) -> str:
    return f"login_{role}_{os.getpid()}"


def make_login(server: psycopg.Connection, role: str) -> None:
    names = {"login": sql.Identifier(login(role)), "role": sql.Identifier(role)}
    server.execute(
        sql.SQL("CREATE ROLE {login} LOGIN PASSWORD {password} IN ROLE {role}").format(
            **names, password=PASSWORD
        )
    )
    server.execute(sql.SQL("ALTER ROLE {login} SET role = {word}").format(**names, word=role))


def address(database_url: str, role: str) -> str:
    parts = urlsplit(database_url)
    return parts._replace(netloc=f"{login(role)}:{PASSWORD}@{parts.hostname}:{parts.port}").geturl()


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection]:
    with postgres.connect(url, application_name="activity-platform roles") as connection:
        yield connection


async def write(url: str, user: str, key: str | None = None) -> int:
    """One request through the writer of ingest."""
    writer = Writer(url, Metrics())
    writer.start()
    try:
        return await writer.write(event_log.submission(user, events.parse(SAVE), key))
    finally:
        await writer.stop()


async def find_transaction(url: str) -> bool | None:
    """What ingest asks after a COMMIT without an answer, of a transaction that never was."""
    now = datetime.now(UTC)
    unknown = event_log.Transaction("3", now - timedelta(minutes=1), now)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await event_log.committed(connection, unknown)


def test_ingest_folds_and_ranker_work_as_their_roles(
    logins: dict[str, str], settings: Settings, connection: psycopg.Connection
) -> None:
    as_ingest = logins["activity_ingest"]
    assert asyncio.run(write(as_ingest, "ann", "key")) == 1
    assert asyncio.run(write(as_ingest, "ann", "key")) == 1  # a repeat
    assert asyncio.run(find_transaction(as_ingest)) is False
    migrations.ensure_current(as_ingest)
    readings = health.collect(replace(settings, database_url=as_ingest, domains=("activity",)))
    assert ("up", 1, "postgresql") in [(one.measure, one.value, one.of) for one in readings]

    # A writer that the fold can see through pg_read_all_stats alone; it began later than the event.
    with psycopg.connect(settings.database_url) as other:
        other.execute(ADD_EVENT)
        assert rollup.fold(logins["activity_fold"], lag_seconds=0).events == 1
    assert rollup.fold(logins["activity_dagster"], lag_seconds=0).events == 1

    with session(logins["activity_ranker"]) as ranker:
        (edge,) = edges.list_edges(ranker, "ann", now=None, half_life_days=30)
    assert (edge.edge_type, edge.target_id, edge.weight) == ("saved", "e1", 3)
    assert connection.execute("SELECT count(*) FROM activity_events").fetchone() == (2,)


def test_dagster_maintains_months_and_works_queues_off_as_its_role(
    logins: dict[str, str], settings: Settings, connection: psycopg.Connection
) -> None:
    own = replace(settings, database_url=logins["activity_dagster"], s3_bucket="")
    made = maintain_log(own)
    assert made.created > 0
    assert made.failed == 0
    later = datetime.now(UTC) + timedelta(days=400)
    connection.execute("UPDATE activity_rollup_state SET watermark = now() + interval '400 days'")
    assert maintain_log(own, now=later).dropped == made.created

    connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id) VALUES (1, 1, %s)", [LINE_USER]
    )
    queues = Queues(connect(settings.redis_url))
    queues.enqueue(
        LAST_ACTIVITY,
        f'{{"lineUserId": "{LINE_USER}", "lineOaId": 1, "organizationId": 1, "activityType": "message",'
        ' "activityStatus": "active"}',
    )
    assert drain(own.database_url, queues).updated == 1
    asked = replace(own, domains=("activity",), dagster_postgres_url="")
    assert [one for one in examine(asked) if one.status is Status.RED] == []


def test_the_owner_migrates(logins: dict[str, str]) -> None:
    assert migrations.upgrade(logins["activity_owner"]) == migrations.head_revision()


def test_who_owned_a_table_goes_on_as_a_member_of_the_owner(
    logins: dict[str, str], connection: psycopg.Connection
) -> None:
    before = login("activity_ranker")
    connection.execute(sql.SQL("ALTER TABLE audience OWNER TO {}").format(sql.Identifier(before)))
    connection.execute(SCRIPT)
    (told,) = connection.execute(
        "SELECT pg_get_userbyid(relowner), pg_has_role(%s, relowner, 'MEMBER')"
        " FROM pg_class WHERE oid = 'audience'::regclass",
        [before],
    )
    assert told == ("activity_owner", True)


@pytest.mark.parametrize("role", REFUSED)
def test_each_is_refused_what_is_not_its_own(logins: dict[str, str], role: str) -> None:
    with session(logins[role]) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (role,)
        for statement in REFUSED[role]:
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement)
