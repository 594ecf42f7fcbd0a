"""The whole platform as processes: ingest, code server and daemon on databases of their own."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from activity_platform.local.programs import Programs
from activity_platform.local.services import DATABASE, Stack

LAG_SECONDS = "1"
VALKEY_DATABASE = "1"  # the sensors would take what other tests put into the first


@pytest.fixture(scope="package")
def platform(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Everything that `dev` runs, for all acceptance tests of the session."""
    names = ("acceptance", "acceptance_dagster")
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        for name, template in zip(names, (DATABASE, "template0"), strict=True):
            server.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
    environment = stack.environment | {
        "DATABASE_URL": stack.database_url(names[0]),
        "DAGSTER_POSTGRES_URL": stack.database_url(names[1]),
        "REDIS_URL": stack.redis_url.removesuffix("/0") + f"/{VALKEY_DATABASE}",
        "ROLLUP_LAG_SECONDS": LAG_SECONDS,
    }
    with Programs(tmp_path_factory.mktemp("platform"), environment) as programs:
        yield programs
