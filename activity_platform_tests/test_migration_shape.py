"""`migrate --check`: what existing tables lack, without a change; those that lack nothing are adopted.

After a wanted change of the schema: `UPDATE_SNAPSHOT=1 .venv/bin/pytest` on this file writes `shape.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from activity_platform import migrations
from activity_platform.cli import main
from activity_platform.failures import PermanentFailure
from activity_platform.local.services import Stack
from activity_platform.migrations import shape

LEGACY = """
CREATE TABLE line_user (
    id serial PRIMARY KEY,
    organization_id bigint NOT NULL,
    line_oa_id bigint,
    line_user_id varchar(255) NOT NULL,
    display_name text,
    picture_url text,
    status_message text,
    language text,
    audience_ids bigint[] NOT NULL DEFAULT ARRAY[]::bigint[],
    last_activity_type text,
    last_activity_status text,
    last_activity_date timestamp,
    nickname text,
    shard integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX legacy ON line_user (line_user_id, line_oa_id);
CREATE TABLE audience (
    id bigserial PRIMARY KEY,
    organization_id bigint NOT NULL,
    line_oa_id bigint NOT NULL,
    name text NOT NULL,
    info jsonb,
    note text,
    deleted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO audience (organization_id, line_oa_id, name) VALUES (1, 1, 'theirs');
"""


@pytest.fixture
def legacy_url(stack: Stack) -> Iterator[str]:
    """A database of an older system, which has tables of its own named line_user and audience."""
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute("CREATE DATABASE legacy TEMPLATE template0")
        with psycopg.connect(stack.database_url("legacy")) as connection:
            connection.execute(LEGACY)
        yield stack.database_url("legacy")
        server.execute("DROP DATABASE legacy WITH (FORCE)")


def lacks(url: str) -> list[tuple[str, str, str, str]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [(one.table, one.part, one.wanted, one.found) for one in migrations.lacks(connection)]


def test_the_expectation_is_what_a_fresh_migration_makes(connection: psycopg.Connection) -> None:
    made = shape.read(connection)
    if os.environ.get("UPDATE_SNAPSHOT"):
        shape.EXPECTED.write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    assert made == shape.expected()
    assert made.keys() >= {"activity_events", "interaction_edges", "line_user", "line_user_engagement"}


def test_the_owner_of_legacy_tables_reads_what_they_lack(legacy_url: str) -> None:
    assert lacks(legacy_url) == [
        ("line_user", "column id", "bigint not null default identity",
         "integer not null default nextval('line_user_id_seq'::regclass)"),
        ("line_user", "column line_oa_id", "bigint not null", "bigint"),
        ("line_user", "column line_user_id", "text not null", "character varying(255) not null"),
        ("line_user", "column audience_ids", "bigint[] not null default '{}'::bigint[]",
         "bigint[] not null default ARRAY[]::bigint[]"),
        ("line_user", "column last_activity_period", "text", "none"),
        ("line_user", "column last_activity_date", "timestamp with time zone", "timestamp without time zone"),
        ("line_user", "column profile_fetched_at", "timestamp with time zone", "none"),
        ("line_user", "column updated_at",
         "timestamp with time zone not null default clock_timestamp()", "none"),
        ("line_user", "column shard", "nullable, or with a default: we don't fill it", "integer not null"),
        ("line_user", "unique", "(id, line_oa_id)", "none"),
        ("line_user", "index", "USING gin (audience_ids)", "none"),
    ]  # fmt: skip


def test_a_plain_table_is_no_partitioned_one_and_no_view(stack: Stack, legacy_url: str) -> None:
    with psycopg.connect(legacy_url) as connection:
        connection.execute("DROP TABLE line_user; CREATE TABLE line_user_engagement (id bigint)")
        connection.execute("CREATE TABLE activity_events (id bigint)")
    found = lacks(legacy_url)
    assert ("activity_events", "partitioning", "RANGE (created_at)", "none") in found
    assert ("line_user_engagement", "kind", "a view", "a table") in found


def test_the_check_changes_nothing_and_ends_with_1(legacy_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def catalog() -> list[tuple[object, ...]]:
        with psycopg.connect(legacy_url) as connection:
            return connection.execute(
                "SELECT oid, relname, relfilenode FROM pg_class ORDER BY oid"
            ).fetchall()

    before = catalog()
    monkeypatch.setenv("DATABASE_URL", legacy_url)
    ended = CliRunner().invoke(main, ["migrate", "--check"])
    assert ended.exit_code == 1
    assert [json.loads(line)["table"] for line in ended.stdout.splitlines()] == ["line_user"] * 11
    assert "never migrated" in ended.stderr
    assert catalog() == before


def test_migrating_over_tables_that_lack_something_is_refused_and_changes_nothing(legacy_url: str) -> None:
    with pytest.raises(PermanentFailure, match=r"nothing was changed.*\(line_user\).*migrate --check"):
        migrations.upgrade(legacy_url)
    with psycopg.connect(legacy_url) as connection:
        assert migrations.current_revision(connection) is None


def test_tables_that_lack_nothing_are_adopted_with_their_rows(legacy_url: str) -> None:
    with psycopg.connect(legacy_url) as connection:
        connection.execute("DROP TABLE line_user")
    assert lacks(legacy_url) == []
    assert migrations.upgrade(legacy_url) == migrations.head_revision()
    assert lacks(legacy_url) == []
    with psycopg.connect(legacy_url) as connection:
        assert connection.execute("SELECT name, note FROM audience").fetchall() == [("theirs", None)]


def test_a_migrated_database_lacks_nothing(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", environment["DATABASE_URL"])
    ended = CliRunner().invoke(main, ["migrate", "--check"])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", "existing tables lack nothing\n")


def test_an_index_that_somebody_dropped_is_noticed(connection: psycopg.Connection, database_url: str) -> None:
    connection.execute("DROP INDEX line_user_audience_ids")
    assert lacks(database_url) == [("line_user", "index", "USING gin (audience_ids)", "none")]
