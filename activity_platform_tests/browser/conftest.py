"""The platform after its demo, and a browser to look at it."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from rich.console import Console

from activity_platform.activity.maintenance import maintain_log
from activity_platform.local.demo import Demo
from activity_platform.local.programs import Programs
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import world_of
from activity_platform_tests.browser.chromium import Browser, chromium, missing

FAILED_RUNS = """
{ runsOrError(filter: {pipelineName: "create_audience_job", statuses: [FAILURE]}) {
    ... on Runs { results { runId } } } }
"""
RUN_SECONDS = 120


@dataclass(frozen=True)
class Site:
    """Where Dagster's UI is, and the run that failed."""

    ui_url: str
    failed_run: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The demo has run through. After it, somebody uploaded a workbook where a CSV belongs."""
    with Stack(tmp_path_factory.mktemp("demo"), durable=False) as stack:
        maintain_log(Settings.load(stack.environment))
        with (
            pytest.MonkeyPatch.context() as patch,
            Programs(stack.directory, stack.environment) as programs,
            Path(os.devnull).open("w") as nowhere,
        ):
            for name, value in programs.environment.items():
                patch.setenv(name, value)
            settings = Settings.load(programs.environment)
            demo = Demo(settings, programs.api_url, programs.ui_url, Console(file=nowhere))
            upload_a_workbook(settings)
            demo.run(look=lambda: None)
            yield Site(programs.ui_url, failed_run(programs.ui_url))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if lack := missing():
        pytest.skip(f"{lack}: on Debian, apt-get install chromium chromium-driver")
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def upload_a_workbook(settings: Settings) -> None:
    workbook = io.BytesIO()
    with zipfile.ZipFile(workbook, "w") as parts:
        parts.writestr("xl/workbook.xml", "<workbook/>")
    with (
        closing(psycopg.connect(settings.database_url, autocommit=True)) as connection,
        world_of(settings, connection) as world,
    ):
        world.create(world.add_audience(), workbook.getvalue())


def failed_run(ui_url: str) -> str:
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        answer = httpx.post(f"{ui_url}/graphql", json={"query": FAILED_RUNS}, timeout=30).json()
        if found := answer["data"]["runsOrError"]["results"]:
            return str(found[0]["runId"])
        assert time.monotonic() < deadline, "the import of the workbook does not fail"
        time.sleep(0.5)
