"""The release's number stands in one place, and everything that tells it tells the same."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from activity_platform import __version__
from activity_platform.cli import main
from activity_platform.defs import alerts
from activity_platform.gateways.line_api import LineApi, NoAnswer
from activity_platform.ingest import token_keys
from activity_platform.ingest.openapi import document
from activity_platform.settings import Settings
from activity_platform_tests.deploy.composition import PROJECT, new_secrets, read_composition


class Listener(HTTPServer):
    """Refuses everything, and keeps as whom callers name themselves."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.callers: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.server.callers.append(self.headers["User-Agent"])
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def ask_line(url: str) -> None:
    async with LineApi(url, "token") as api:
        with pytest.raises(NoAnswer):
            await api.check_token()


async def ask_for_keys(url: str) -> None:
    with pytest.raises(token_keys.KeysAway):
        await token_keys.token_keys(Settings.load({"JWT_ALGORITHM": "RS256", "JWT_JWKS_URL": url})).find("k")


def test_the_package_the_command_line_and_the_api_tell_it() -> None:
    assert version("activity-platform") == __version__
    assert CliRunner().invoke(main, ["--version"]).output.endswith(f"version {__version__}\n")
    assert document("/events", "/edges")["info"]["version"] == __version__


def test_the_image_of_compose_has_it_as_its_tag(tmp_path: Path) -> None:
    services = read_composition(new_secrets(tmp_path))["services"].values()
    images = {service["image"] for service in services if "build" in service}
    assert images == {f"activity-platform:{__version__}"}


def test_whoever_is_asked_over_http_sees_it(listener: Listener) -> None:
    asyncio.run(ask_line(listener.url))
    asyncio.run(ask_for_keys(listener.url))
    run = dg.DagsterRun(job_name="interaction_edges_job")
    alerts.tell(run, iter(()), webhook_url=listener.url, write=lambda _: None)
    assert listener.callers == [f"activity-platform/{__version__}"] * 3


def test_the_changelog_begins_with_it() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == __version__
    assert all(date for _, date in headings[1:])
