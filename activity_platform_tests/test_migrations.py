"""The schema comes up from empty, by several at once, and beside the rows of the release before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import dagster as dg
import psycopg
import pytest
from click.testing import CliRunner

from activity_platform import migrations
from activity_platform.cli import main
from activity_platform.definitions import build_defs
from activity_platform.failures import PermanentFailure
from activity_platform.local.services import Stack
from activity_platform.settings import Settings


@pytest.fixture
def empty_database_url(stack: Stack) -> Iterator[str]:
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute("CREATE DATABASE empty TEMPLATE template0")
        yield stack.database_url("empty")
        server.execute("DROP DATABASE empty WITH (FORCE)")


def test_several_at_once_bring_an_empty_database_to_the_head(empty_database_url: str) -> None:
    ended: list[str] = []
    threads = [
        threading.Thread(target=lambda: ended.append(migrations.upgrade(empty_database_url)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ended == [migrations.head_revision()] * 4
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT name, watermark FROM activity_rollup_state").fetchall()


def test_erasures_come_to_a_database_in_use_without_touching_its_rows(empty_database_url: str) -> None:
    migrations.upgrade(empty_database_url, "0004")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
            " VALUES ('a', 'tap', 'user', 'b')"
        )
        connection.execute("INSERT INTO line_oa (organization_id, hash) VALUES (1, 'h')")
        before = _rows(connection)
        with connection.transaction():  # as a process at work holds it
            connection.execute("LOCK TABLE activity_events, line_user, audience IN ROW EXCLUSIVE MODE")
            assert migrations.upgrade(empty_database_url) == migrations.head_revision()
        assert {table: rows for table, rows in _rows(connection).items() if table in before} == before
        assert connection.execute("SELECT count(*) FROM erasure").fetchone() == (0,)


def _rows(connection: psycopg.Connection) -> dict[str, list[tuple[object, ...]]]:
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    ).fetchall()
    return {
        name: connection.execute(
            psycopg.sql.SQL("SELECT to_jsonb(t) FROM {} AS t ORDER BY 1").format(psycopg.sql.Identifier(name))
        ).fetchall()
        for (name,) in tables
    }


def test_a_finished_erasure_names_no_one(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO erasure (kind, subject) VALUES ('user', 'ann')")
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("UPDATE erasure SET finished_at = now()")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("INSERT INTO erasure (kind, subject) VALUES ('user', 'ann')")
    connection.execute("UPDATE erasure SET finished_at = now(), subject = NULL")
    connection.execute("INSERT INTO erasure (kind, subject) VALUES ('user', 'ann')")


def test_a_database_of_a_newer_release_is_refused(database_url: str, connection: psycopg.Connection) -> None:
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(PermanentFailure, match="9999"):
        migrations.upgrade(database_url)


STANDINGS = {
    None: "never migrated, this release needs migration {head}: run `activity-platform migrate`",
    "0002": "stands at migration 0002, this release needs {head}: run `activity-platform migrate`",
    "9999": "stands at migration 9999, which this release (migration {head}) does not know: use the release",
}


@pytest.fixture(params=list(STANDINGS), ids=["never", "behind", "ahead"])
def refusal(request: pytest.FixtureRequest, connection: psycopg.Connection) -> str:
    """The database stands elsewhere than at the head; what has to be said about it."""
    if request.param is None:
        connection.execute("DROP TABLE alembic_version")
    else:
        connection.execute("UPDATE alembic_version SET version_num = %s", [request.param])
    return STANDINGS[request.param].format(head=migrations.head_revision())


@pytest.mark.parametrize("command", [["rollup"], ["partitions", "plan"], ["edges", "somebody"], ["ingest"]])
def test_commands_refuse_a_database_behind_or_ahead_in_one_line(
    refusal: str, command: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert refusal in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_runs_refuse_a_database_behind_or_ahead(refusal: str, settings: Settings) -> None:
    definitions = build_defs(settings)
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("interaction_edges_job")
        ended = job.execute_in_process(instance=instance, raise_on_error=False)
        assert not ended.success
        assert any(refusal in str(event.event_specific_data) for event in ended.all_events)


def test_a_current_database_is_accepted(database_url: str) -> None:
    migrations.ensure_current(database_url)


def test_edges_refuse_weights_that_are_not_finite_and_positive(connection: psycopg.Connection) -> None:
    for weight in ("-1", "NaN", "Infinity"):
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(
                "INSERT INTO interaction_edges VALUES ('a', 'saved', 'event', 't', %s, 1, now(), now())",
                [float(weight)],
            )


def test_engagement_tells_quiet_users_from_those_never_active(connection: psycopg.Connection) -> None:
    connection.execute(
        """INSERT INTO line_user (organization_id, line_oa_id, line_user_id, last_activity_date) VALUES
           (1, 1, 'quiet', clock_timestamp() - interval '31 days 1 hour'), (1, 1, 'never', NULL),
           (1, 1, 'ahead', clock_timestamp() + interval '1 day'), (1, 1, 'odd', 'infinity')"""
    )
    found = connection.execute("SELECT line_user_id, inactive_days, never_active FROM line_user_engagement")
    assert set(found) == {
        ("quiet", 31, False),
        ("never", None, True),
        ("ahead", 0, False),
        ("odd", None, False),
    }
