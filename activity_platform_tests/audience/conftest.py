from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World, world_of
from activity_platform_tests.simulated_line import SimulatedLine


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


@pytest.fixture
def aws(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that the S3 client reads by itself."""
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def retry_seconds() -> str:
    """Three attempts without a wait."""
    return "0,0"


@pytest.fixture
def world(
    environment: dict[str, str],
    connection: psycopg.Connection,
    line: SimulatedLine,
    aws: None,
    retry_seconds: str,
) -> Iterator[World]:
    settings = Settings.load(environment | {"AUDIENCE_RETRY_SECONDS": retry_seconds})
    with world_of(settings, connection) as world:
        yield world
