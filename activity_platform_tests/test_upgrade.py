"""A database of an earlier release, with rows in place, is migrated: no row changes, and work goes on on it.

`releases/` holds one dump a release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg import sql

from activity_platform import migrations
from activity_platform.activity import checks, edges, event_log, events, rollup
from activity_platform.activity.maintenance import maintain_log
from activity_platform.gateways.queue import LAST_ACTIVITY, MOOKEPT_AUDIENCE, Queues, connect
from activity_platform.last_activity.drain import drain
from activity_platform.local.services import Stack
from activity_platform.migrations import shape
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import world_of

RELEASES = sorted(Path(__file__).with_name("releases").glob("*.sql"))

A, B, C = (f"U{letter * 32}" for letter in "abc")
#: The command that is under way in the dump.
STARTED = "1764489600000-0"
ADD = '{"lineOaId": 1, "organizationId": 1, "audienceId": 7, "filePath": "up/7c.csv", "actionType": "add"}'
TAP = b'{"events": [{"verb": "tap", "object_type": "event", "object_id": "jazz-night"}]}'

Rows = dict[str, list[str]]


@pytest.fixture(params=RELEASES, ids=[path.stem for path in RELEASES])
def old_url(request: pytest.FixtureRequest, stack: Stack) -> Iterator[str]:
    """A database as that release left it."""
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute("CREATE DATABASE upgraded TEMPLATE template0")
        try:
            with psycopg.connect(stack.database_url("upgraded")) as connection:
                connection.execute(request.param.read_bytes())
            yield stack.database_url("upgraded")
        finally:
            server.execute("DROP DATABASE upgraded WITH (FORCE)")


@pytest.fixture
def upgraded(old_url: str, settings: Settings, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a platform on the database, migrated."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, stack.environment[name])
    migrations.upgrade(old_url)
    return replace(settings, database_url=old_url)


def relations(connection: psycopg.Connection) -> dict[str, list[str]]:
    """The columns of every table and view."""
    found = shape.read(connection)
    return {name: list(relation.columns) for name, relation in found.items() if relation.kind == "table"}


def rows(connection: psycopg.Connection, columns: dict[str, list[str]]) -> Rows:
    """Every row of those tables, those columns of it, as text."""
    statement = sql.SQL("SELECT ROW({})::text FROM {} ORDER BY 1")
    return {
        table: [
            text
            for (text,) in connection.execute(
                statement.format(sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(table))
            )
        ]
        for table, names in columns.items()
    }


def test_no_row_changes(old_url: str) -> None:
    with psycopg.connect(old_url, autocommit=True) as connection:
        columns = relations(connection)
        before = rows(connection, columns)
        assert all(before.values()), "the dump has rows in every table"
        assert migrations.upgrade(old_url) == migrations.head_revision()
        assert rows(connection, columns) == before
        assert migrations.lacks(connection) == []


def test_events_of_both_releases_are_in_one_edge(upgraded: Settings) -> None:
    assert maintain_log(upgraded, now=datetime(2025, 12, 1, tzinfo=UTC)).failed == 0

    async def post() -> None:
        async with await psycopg.AsyncConnection.connect(
            upgraded.database_url, autocommit=True
        ) as connection:
            await event_log.append(connection, [event_log.submission("ann", events.parse(TAP), "5f0c")])

    asyncio.run(post())
    assert rollup.fold(upgraded.database_url, lag_seconds=0).events == 1
    with psycopg.connect(upgraded.database_url, autocommit=True) as connection:
        found = edges.list_edges(connection, "ann", now=None, half_life_days=30)
        weights = {edge.edge_type: (edge.weight, edge.event_count) for edge in found}
        assert checks.check_conservation(connection).passed
    assert weights == {"tapped": (1.0, 2), "saved": (3.0, 1), "attended": (3.0, 1), "dismissed": (1.0, 1)}


def test_a_command_that_was_under_way_is_finished(upgraded: Settings) -> None:
    with (
        psycopg.connect(upgraded.database_url, autocommit=True) as connection,
        world_of(upgraded, connection) as world,
        redis.Redis.from_url(upgraded.redis_url) as client,
    ):
        world.line_oa_id = 1
        assert world.members(7) == [B, C]
        world.upload([A], "up/7c.csv")
        client.xadd(MOOKEPT_AUDIENCE, {"payload": ADD}, id=STARTED)
        world.process()
        world.assert_consistent(7, [A, B, C])
        assert world.imports(7)[-1]["status"] == "done"
        assert world.info(7)["color"] == "red"
        assert (1, A, "added") in world.firings()


def test_activities_of_both_releases_are_told_in_their_order(upgraded: Settings) -> None:
    queues = Queues(connect(upgraded.redis_url))
    queues.enqueue(
        LAST_ACTIVITY,
        f'{{"lineUserId": "{A}", "lineOaId": 1, "organizationId": 1, "activityType": "click",'
        ' "activityStatus": "active"}',
    )
    assert drain(upgraded.database_url, queues).updated == 1
    with psycopg.connect(upgraded.database_url) as connection:
        told = connection.execute(
            "SELECT last_activity_type, last_activity_period <> 'first'"
            " FROM line_user WHERE line_user_id = %s",
            [A],
        ).fetchone()
    assert told == ("click", True)
