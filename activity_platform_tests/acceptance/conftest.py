"""The whole platform as processes: ingest, code server and daemon on databases of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from activity_platform.ingest.auth import development_token
from activity_platform.local.programs import Programs
from activity_platform.local.services import DATABASE, Stack
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World, world_of
from activity_platform_tests.simulated_line import SimulatedLine

ANN = "ann"
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


@pytest.fixture(scope="package", autouse=True)
def posted(platform: Programs) -> list[dict[str, Any]]:
    """Events of Ann, posted over HTTP when the platform starts."""
    token = development_token(Settings.load(platform.environment), ANN)
    events: list[dict[str, Any]] = [
        {"verb": "save", "object_type": "event", "object_id": "e1"},
        {"verb": "rsvp", "object_type": "event", "object_id": "e1"},
        {"verb": "attend", "object_type": "event", "object_id": "e1"},
        {"verb": "impression", "object_type": "event", "object_id": "e2", "context": {"rank": 1}},
    ]
    answer = httpx.post(
        f"{platform.api_url}/api/v1/activity/events",
        headers={"Authorization": f"Bearer {token}"},
        json={"events": events},
    )
    assert (answer.status_code, answer.json()) == (202, {"accepted": len(events)})
    return events


@pytest.fixture
def world(platform: Programs, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An account of its own on the running platform, and a LINE without scripted answers."""
    for name, value in platform.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    settings = Settings.load(platform.environment)
    SimulatedLine(settings.line_api_base_url).reset()
    with (
        psycopg.connect(settings.database_url, autocommit=True) as connection,
        world_of(settings, connection) as world,
    ):
        yield world


def until(condition: Callable[[], Any], seconds: float, *, every: float = 0.2) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(every)
    return found


def wait_until_empty(world: World, seconds: float) -> None:
    """Until no audience queue holds a message."""
    queues = ("create_audience", "update_audience", "mookept_audience", "delete_audience")
    until(lambda: not any(world.services.queues.depth(queue) for queue in queues), seconds)
