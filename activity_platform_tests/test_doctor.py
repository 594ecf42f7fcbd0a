"""The doctor names what is wrong, whatever else is wrong too, and how to cure it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import dagster as dg
import psycopg
import pytest
import redis
from click.testing import CliRunner
from dagster._daemon.types import DaemonHeartbeat
from psycopg import sql

from activity_platform.cli import main
from activity_platform.doctor import Finding, Status, examine
from activity_platform.doctor import redis as redis_doctor
from activity_platform.gateways.dagster_database import DAEMONS
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.pooler import transaction_pooler
from activity_platform_tests.simulated_line import SimulatedLine

Environment = dict[str, str]


def beat(instance: dg.DagsterInstance, *, seconds_ago: float = 0) -> None:
    for daemon in DAEMONS:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - seconds_ago, daemon, "one", []))


@pytest.fixture
def healthy(
    environment: Environment, instance: dg.DagsterInstance, dagster_postgres_url: str, stack: Stack
) -> Environment:
    """A whole stack with a daemon that beats and two accounts with tokens."""
    beat(instance)
    SimulatedLine(stack.environment["LINE_API_BASE_URL"]).reset()
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        connection.execute(
            "INSERT INTO line_oa (id, organization_id, hash, channel_access_token)"
            " VALUES (11, 1, 'a', 'token-a'), (12, 1, 'b', 'token-b')"
        )
    return environment | {"DAGSTER_POSTGRES_URL": dagster_postgres_url}


@pytest.fixture(autouse=True)
def credentials(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)


def findings(environment: Environment, **options: float) -> list[Finding]:
    return list(examine(Settings.load(environment), **options))  # type: ignore[arg-type]


def troubles(environment: Environment) -> list[Finding]:
    return [one for one in findings(environment) if one.status is Status.RED]


def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


def at(url: str, host: str) -> str:
    parts = urlsplit(url)
    user, at_sign, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at_sign}{host}"))


def test_a_healthy_stack_has_an_ok_for_everything(healthy: Environment) -> None:
    found = findings(healthy)
    # The tests' server trades the safety of a power failure for speed.
    assert {one.check for one in found if one.status is not Status.OK} == {"durability"}
    assert {one.check for one in found} == {
        *("postgresql", "migrations", "rights", "pooler", "durability", "connections"),
        *("redis", "maxmemory-policy", "redis persistence", "s3", "line", "dagster daemon", "clocks"),
    }


@contextmanager
def behind(environment: Environment) -> Iterator[Environment]:
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0002'")
    yield environment


@contextmanager
def ahead(environment: Environment) -> Iterator[Environment]:
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    yield environment


@contextmanager
def pooled(environment: Environment) -> Iterator[Environment]:
    with transaction_pooler(environment["DATABASE_URL"]) as conninfo:
        port = psycopg.conninfo.conninfo_to_dict(conninfo)["port"]
        yield environment | {"DATABASE_URL": at(environment["DATABASE_URL"], f"127.0.0.1:{port}")}


@contextmanager
def old_postgres(environment: Environment) -> Iterator[Environment]:
    with transaction_pooler(environment["DATABASE_URL"], server_version="14.9") as conninfo:
        port = psycopg.conninfo.conninfo_to_dict(conninfo)["port"]
        yield environment | {"DATABASE_URL": at(environment["DATABASE_URL"], f"127.0.0.1:{port}")}


@contextmanager
def humble_role(environment: Environment) -> Iterator[Environment]:
    with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE ROLE humble LOGIN PASSWORD 'humble'")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO humble")
        parts = urlsplit(environment["DATABASE_URL"])
        netloc = f"humble:humble@{parts.hostname}:{parts.port}"
        yield environment | {"DATABASE_URL": urlunsplit(parts._replace(netloc=netloc))}
        connection.execute("DROP OWNED BY humble")
        connection.execute("DROP ROLE humble")


@contextmanager
def standby(environment: Environment) -> Iterator[Environment]:
    with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(
                sql.Identifier(connection.info.dbname)
            )
        )
    yield environment


@contextmanager
def evicting(environment: Environment) -> Iterator[Environment]:
    with redis.Redis.from_url(environment["REDIS_URL"]) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield environment
        client.config_set("maxmemory-policy", "noeviction")


@contextmanager
def lapsed_token(environment: Environment) -> Iterator[Environment]:
    SimulatedLine(environment["LINE_API_BASE_URL"]).answer("unauthorized", token="token-b")
    yield environment


@contextmanager
def silent_daemon(environment: Environment) -> Iterator[Environment]:
    with psycopg.connect(environment["DAGSTER_POSTGRES_URL"]) as connection:
        connection.execute("UPDATE daemon_heartbeats SET timestamp = timestamp - interval '10 minutes'")
    yield environment


@contextmanager
def no_dagster(environment: Environment) -> Iterator[Environment]:
    yield environment | {"DAGSTER_POSTGRES_URL": environment["DATABASE_URL"]}


def setting(name: str, value: Callable[[str], str]) -> Callable[..., object]:
    @contextmanager
    def changed(environment: Environment) -> Iterator[Environment]:
        yield environment | {name: value(environment[name])}

    return changed


BROKEN = {
    "PostgreSQL is away": (
        setting("DATABASE_URL", lambda url: at(url, nowhere())),
        [("postgresql", "PostgreSQL can't be reached", "start PostgreSQL, or correct host and port")],
    ),
    "its password is wrong": (
        setting("DATABASE_URL", lambda url: url.replace(urlsplit(url).password or "", "guess")),
        [("postgresql", "password authentication failed", "correct user and password in DATABASE_URL")],
    ),
    "the database is not there": (
        setting("DATABASE_URL", lambda url: f"{url}x"),
        [("postgresql", "does not exist", "create the database, or correct its name in DATABASE_URL")],
    ),
    "PostgreSQL is old": (old_postgres, [("postgresql", "version 14.9", "upgrade the server: 15 to 18")]),
    "the database is behind": (behind, [("migrations", "0002", "run `activity-platform migrate`")]),
    "the database is ahead": (ahead, [("migrations", "9999", "use the release that made it, or a newer")]),
    "it takes no writes": (
        standby,
        [("postgresql", "it takes no writes", "point DATABASE_URL at the primary")],
    ),
    "the role is nobody's": (
        humble_role,
        [
            ("rights", "can't see when transactions", 'GRANT pg_read_all_stats TO "humble"'),
            ("rights", "can't make and drop partitions", 'TO "humble"'),
        ],
    ),
    "a pooler gives sessions away": (pooled, [("pooler", "advisory locks", "set pool_mode = session")]),
    "Redis is away": (
        setting("REDIS_URL", lambda url: at(url, nowhere())),
        [("redis", "Redis can't be reached", "start Redis, or correct host and port in REDIS_URL")],
    ),
    "Redis evicts": (evicting, [("maxmemory-policy", "allkeys-lru", "set maxmemory-policy noeviction")]),
    "the bucket is not there": (
        setting("S3_BUCKET", lambda _: "no-such-bucket"),
        [("s3", "Put was refused (NoSuchBucket)", "create the bucket, or correct S3_BUCKET")],
    ),
    "S3 is away": (
        setting("S3_ENDPOINT_URL", lambda _: f"http://{nowhere()}"),
        [("s3", "can't be reached", "correct S3_ENDPOINT_URL")],
    ),
    "a token has lapsed": (
        lapsed_token,
        [("line", "OA 12: LINE refused the channel access token (401)", "issue a token for OA 12")],
    ),
    "the daemon is silent": (
        silent_daemon,
        [("dagster daemon", "SENSOR, QUEUED_RUN_COORDINATOR", "start `dagster-daemon run`")],
    ),
    "Dagster never ran": (
        no_dagster,
        [("dagster", "its tables are not there", "start its daemon")],
    ),
}


@pytest.mark.parametrize("cause", BROKEN)
def test_each_cause_has_its_line_and_its_cure_and_the_rest_is_looked_at(
    healthy: Environment, cause: str
) -> None:
    broken, expected = BROKEN[cause]
    with broken(healthy) as environment:  # type: ignore[attr-defined]
        found = findings(environment)
    red = [one for one in found if one.status is Status.RED]
    if cause == "PostgreSQL is old":  # it is a pooler that says so
        red = [one for one in red if one.check != "pooler"]
    assert [one.check for one in red] == [check for check, _, _ in expected]
    for one, (_, what, cure) in zip(red, expected, strict=True):
        assert what in one.what
        assert cure in one.cure
    text = repr(found)
    assert "token-a" not in text
    assert "token-b" not in text
    assert str(urlsplit(healthy["DATABASE_URL"]).password) not in text
    assert {"postgresql", "redis", "s3", "line", "clocks"} <= {one.check for one in found}


def test_all_broken_at_once_is_all_told(healthy: Environment) -> None:
    names = ("DATABASE_URL", "REDIS_URL", "S3_ENDPOINT_URL", "DAGSTER_POSTGRES_URL")
    red = troubles(healthy | {name: at(healthy[name], nowhere()) for name in names})
    assert [one.check for one in red] == ["postgresql", "redis", "s3", "dagster"]


@pytest.mark.parametrize(("seconds", "status"), [(0.2, Status.OK), (2, Status.WARN), (-9, Status.RED)])
def test_the_clock_that_is_off_is_named(healthy: Environment, seconds: float, status: Status) -> None:
    shifted = examine(Settings.load(healthy), clock=lambda: datetime.now(UTC) + timedelta(seconds=seconds))
    (found,) = [one for one in shifted if one.check == "clocks"]
    assert found.status is status
    assert ("the clock of this host" in found.cure) == (status is not Status.OK)


def test_a_system_that_takes_connections_and_says_nothing_is_told_in_time(healthy: Environment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = at(healthy["DATABASE_URL"], f"127.0.0.1:{mute.getsockname()[1]}")
        started = time.monotonic()
        found = findings(healthy | {"DATABASE_URL": silent}, timeout_seconds=2)
        assert time.monotonic() - started < 3
    assert found[0] == Finding(Status.RED, "postgresql", "no answer in time", found[0].cure)
    assert "redis" in {one.check for one in found if one.status is Status.OK}


def test_what_the_chosen_domains_do_without_is_not_looked_at(healthy: Environment) -> None:
    checks = {one.check for one in findings(healthy | {"DOMAINS": "activity", "REDIS_URL": ""})}
    assert checks == {
        *("postgresql", "migrations", "rights", "pooler", "durability", "connections"),
        *("dagster daemon", "clocks"),
    }


def test_a_missing_variable_is_named(healthy: Environment) -> None:
    (found,) = troubles(healthy | {"S3_BUCKET": ""})
    assert (found.check, found.what) == ("s3", "S3_BUCKET is not set")


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"redis_version": "6.2.14"}, Status.RED),
        ({"redis_version": "7.0.15"}, Status.OK),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.9"}, Status.RED),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, Status.OK),
    ],
)
def test_redis_from_7_0_and_valkey_from_8_will_do(info: dict[str, str], status: Status) -> None:
    assert redis_doctor._version(info).status is status


def test_an_account_without_a_token_and_a_waiting_run_are_warned_of(healthy: Environment) -> None:
    with psycopg.connect(healthy["DATABASE_URL"]) as connection:
        connection.execute("UPDATE line_oa SET channel_access_token = NULL WHERE id = 11")
    with psycopg.connect(healthy["DAGSTER_POSTGRES_URL"]) as connection:
        connection.execute(
            "INSERT INTO runs (run_id, status, create_timestamp)"
            " VALUES ('r', 'QUEUED', (now() AT TIME ZONE 'UTC') - interval '1 hour')"
        )
    warned = {one.check: one.what for one in findings(healthy) if one.status is Status.WARN}
    assert "OA 11 has no channel access token" in warned["line"]
    assert "QUEUED run waits for 3600 s" in warned["dagster runs"]


def test_the_command_prints_a_line_a_check_and_fails_when_one_is_red(
    healthy: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in healthy.items():
        monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(main, ["doctor"])
    assert ended.exit_code == 0
    assert all(
        json.loads(line).keys() == {"status", "check", "what", "cure"} for line in ended.stdout.splitlines()
    )
    monkeypatch.setenv("S3_BUCKET", "no-such-bucket")
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 1
