"""The served app, started once a module, on a database of its own. Tests write for users of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from activity_platform.local.services import DATABASE, Stack
from activity_platform_tests.ingest.served import Served, new_user


@contextmanager
def fresh_database(stack: Stack) -> Iterator[str]:
    """A migrated database, dropped afterwards."""
    name = f"ingest_{uuid.uuid4().hex}"
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(DATABASE))
        )
        yield stack.database_url(name)
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def module_environment(stack: Stack) -> Iterator[dict[str, str]]:
    with fresh_database(stack) as database_url:
        yield stack.environment | {"DATABASE_URL": database_url, "CORS_ORIGINS": ""}


@pytest.fixture(scope="module")
def api(module_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(module_environment, tmp_path_factory.mktemp("ingest")) as served:
        yield served


@pytest.fixture
def user() -> str:
    return new_user()
