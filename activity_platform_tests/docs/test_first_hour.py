"""What docs/first-hour.md says is so: its commands run, in their order, on a platform like that of `dev`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from activity_platform.local.programs import Programs
from activity_platform.local.services import DATABASE, Stack
from activity_platform_tests.docs.markdown import DOCS, fenced

PAGE = (DOCS / "first-hour.md").read_text()
VALKEY_DATABASE = "3"  # the sensors would take what other tests put into theirs
PATIENCE_SECONDS = 90
#: In place of the pause that is long enough on a machine that does nothing else.
UNTIL_BURIED = 'until [ "$(activity-platform queue dead update_audience)" ]; do sleep 1; done\n'

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.fixture
def platform(stack: Stack, tmp_path: Path) -> Iterator[Programs]:
    """A fresh one, on databases of its own."""
    names = {"first_hour": DATABASE, "first_hour_dagster": "template0"}
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        for name, template in names.items():
            server.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
    urls = dict(zip(("DATABASE_URL", "DAGSTER_POSTGRES_URL"), map(stack.database_url, names), strict=True))
    redis_url = stack.redis_url.removesuffix("/0") + f"/{VALKEY_DATABASE}"
    with Programs(tmp_path / "platform", stack.environment | urls | {"REDIS_URL": redis_url}) as programs:
        yield programs


def run(platform: Programs, directory: Path) -> str:
    """What all commands of the page print, run by one shell that stops at the first that fails."""
    script = "\n".join(["set -eu", *fenced(PAGE, "sh")])
    script = script.replace("localhost:8000", urlsplit(platform.api_url).netloc)
    assert "sleep 15\n" in script
    script = script.replace("sleep 15\n", UNTIL_BURIED)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env={
            **os.environ,
            **platform.environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def json_values(text: str) -> Iterator[dict[str, Any]]:
    """What was printed; curl ends no line."""
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


def until(look: Callable[[], Any], expected: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"{found} is not {expected}"
        time.sleep(0.5)


def test_its_commands_do_what_it_says(platform: Programs, tmp_path: Path) -> None:
    printed = run(platform, tmp_path)
    lines = list(json_values(printed))
    assert {"accepted": 4} in lines
    weights = {line["edge_type"]: line["weight"] for line in lines if "edge_type" in line}
    assert weights == {"saved": 3, "dismissed": 1, "tapped": 0.5}
    (served,) = [line["edges"] for line in lines if isinstance(line.get("edges"), list)]
    assert [edge["edge_type"] for edge in served] == ["saved"]
    imports = [line["stats"] for line in lines if "stats" in line]
    assert [(one["members"], one["invalid"]) for one in imports] == [(2, 1), (1, 0)]
    assert [line["reason"] for line in lines if "dead_id" in line] == ["bad_payload"]

    with psycopg.connect(platform.environment["DATABASE_URL"], autocommit=True) as connection:

        def active() -> list[tuple[Any, ...]]:
            return connection.execute(
                "SELECT line_user_id, last_activity_status FROM line_user"
                " WHERE last_activity_type = 'message' AND audience_ids = '{7}'"
            ).fetchall()

        until(active, [("U0123456789abcdef0123456789abcdef", "active")])
