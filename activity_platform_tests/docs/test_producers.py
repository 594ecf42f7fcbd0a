"""The producers of docs/queues.md put messages on the queues that the platform understands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from activity_platform.audience.messages import AudienceMessage, Command
from activity_platform.audience.messages import decode as decode_audience
from activity_platform.gateways.queue import CREATE_AUDIENCE, LAST_ACTIVITY, Entry, Queues, connect
from activity_platform.last_activity.messages import decode as decode_activity
from activity_platform_tests.docs.markdown import DOCS

EXAMPLES = DOCS / "examples"
#: From here on Node runs TypeScript as it is.
STRIPS_TYPES = (22, 18)
PACKAGES = ["redis@5"]
#: What runs it on an older Node.
RUNNER = "tsx@4"


def run(command: Sequence[str | Path], redis_url: str, directory: Path) -> list[str]:
    """The lines that the producer prints."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def only_entry(queues: Queues, queue: str) -> Entry:
    (entry,) = queues.peek(queue).entries
    return entry


def assert_understood(redis_url: str, printed: list[str]) -> None:
    """Both messages are on their queues, with an id of the producer's own, and can be decoded."""
    with closing(connect(redis_url)) as client:
        queues = Queues(client)
        activity, audience = only_entry(queues, LAST_ACTIVITY), only_entry(queues, CREATE_AUDIENCE)
    assert printed == [activity.entry_id, audience.entry_id]
    assert re.fullmatch(r"[0-9a-f-]{36}", activity.message_id)
    assert activity.message_id != audience.message_id
    assert decode_activity(activity).type == "message"
    assert decode_audience(audience) == AudienceMessage(Command.CREATE, 7, 1, 1, "up/7.csv")


def test_the_one_in_python(redis_url: str, tmp_path: Path) -> None:
    assert_understood(redis_url, run([sys.executable, EXAMPLES / "producer.py"], redis_url, tmp_path))


@pytest.mark.heavy
def test_the_one_in_typescript(redis_url: str, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    strips = tuple(map(int, version.strip("v\n").split(".")[:2])) >= STRIPS_TYPES
    shutil.copy(EXAMPLES / "producer.ts", tmp_path)
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    packages = PACKAGES if strips else [*PACKAGES, RUNNER]
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", *packages],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if installed.returncode != 0:
        pytest.skip("npm can't install the client: " + installed.stderr.strip().splitlines()[-1])
    command = [node, "producer.ts"] if strips else [node, "--import", "tsx", "producer.ts"]
    assert_understood(redis_url, run(command, redis_url, tmp_path))
