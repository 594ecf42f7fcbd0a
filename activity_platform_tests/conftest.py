"""Real parts for every test: one embedded stack a session, a database cloned and a Valkey emptied per test.

`POSTGRES_BIN` names the `bin` directory of another PostgreSQL than the wheel's, to run the tests on it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dagster as dg
import hypothesis
import psycopg
import pytest
import redis
from psycopg import sql
from xdist.scheduler import LoadScopeScheduling

from activity_platform.local.services import DATABASE, Stack
from activity_platform.settings import Settings
from activity_platform_tests.memory_directory import memory_directory

_numbers = itertools.count(1)

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

#: Tests that start every program of the platform: one worker runs them, one after the other.
PLATFORM_TESTS = ("activity_platform_tests/acceptance/", "activity_platform_tests/deploy/test_commands.py")


class OneFileOneWorker(LoadScopeScheduling):  # type: ignore[misc]  # published without types
    """Hands files to workers whole. (xdist's own groups, `--dist loadgroup`, do nothing on pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return "platform" if nodeid.startswith(PLATFORM_TESTS) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneFileOneWorker:
    return OneFileOneWorker(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds a stack that happens to run on this machine, nor leaves traces outside its directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        yield


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """PostgreSQL, Valkey, S3 and the LINE simulator, migrated, for the whole session."""
    binaries = os.environ.get("POSTGRES_BIN")
    with (
        memory_directory(tmp_path_factory.mktemp("stack")) as directory,
        Stack(directory, durable=False, postgres_binaries=Path(binaries) if binaries else None) as running,
    ):
        yield running


@pytest.fixture
def database_url(stack: Stack) -> Iterator[str]:
    """A migrated database of the test's own, without any partition but DEFAULT."""
    name = f"test_{next(_numbers)}"
    identifiers = {"name": sql.Identifier(name), "template": sql.Identifier(DATABASE)}
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**identifiers))
        yield stack.database_url(name)
        server.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**identifiers))


@pytest.fixture(scope="session")
def dagster_template(stack: Stack) -> str:
    """The name of a database with the tables that Dagster makes at its first start."""
    name = "dagster_template"
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    with _dagster_instance(stack.database_url(name)):
        return name


@pytest.fixture
def dagster_postgres_url(stack: Stack, dagster_template: str) -> Iterator[str]:
    """A database for Dagster, of the test's own."""
    name = f"test_dagster_{next(_numbers)}"
    identifiers = {"name": sql.Identifier(name), "template": sql.Identifier(dagster_template)}
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**identifiers))
        yield stack.database_url(name)
        server.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**identifiers))


@pytest.fixture
def instance(dagster_postgres_url: str) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance on it."""
    with _dagster_instance(dagster_postgres_url) as instance:
        yield instance


def _dagster_instance(postgres_url: str) -> AbstractContextManager[dg.DagsterInstance]:
    return dg.instance_for_test(overrides={"storage": {"postgres": {"postgres_url": postgres_url}}})


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to the test's database, in autocommit."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def redis_url(stack: Stack) -> str:
    """An empty Valkey."""
    with redis.Redis.from_url(stack.redis_url) as client:
        client.flushdb()
    return stack.redis_url


@pytest.fixture
def environment(stack: Stack, database_url: str, redis_url: str) -> dict[str, str]:
    """The environment of a process that works on the test's database."""
    return stack.environment | {"DATABASE_URL": database_url, "REDIS_URL": redis_url}


@pytest.fixture
def settings(environment: dict[str, str]) -> Settings:
    return Settings.load(environment)
