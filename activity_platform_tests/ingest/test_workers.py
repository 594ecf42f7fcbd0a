"""Several worker processes on one port: one app to the outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from activity_platform.local.server import accepts_connections
from activity_platform_tests.ingest.served import Served, body, event, new_user

WORKERS = 2


@pytest.fixture
def served(module_environment: dict[str, str], tmp_path: Path) -> Iterator[Served]:
    with Served(module_environment, tmp_path, workers=WORKERS) as served:
        yield served


def workers(api: Served) -> set[int]:
    """The worker processes' ids: the children that serve, not multiprocessing's own helper."""
    told = subprocess.run(
        ["ps", "-wweo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\s*(\d+)\s+(\d+) .*spawn_main", told, re.MULTILINE)
    return {int(pid) for pid, parent in found if int(parent) == api.process.pid}


def waited_for(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def post_on_new_connections(api: Served, count: int) -> set[int]:
    """Statuses of that many requests, each on a connection of its own, so that every worker has some."""
    found = set()
    for _ in range(count):
        with httpx.Client(verify=False) as client:
            headers = api.headers(new_user())
            found.add(
                client.post(
                    f"{api.url}/api/v1/activity/events", content=body(event()), headers=headers
                ).status_code
            )
    return found


def counted(api: Served) -> float:
    with httpx.Client(verify=False) as client:
        text = client.get(f"{api.url}/metrics").text
    [count] = re.findall(r"^activity_ingest_events_accepted_total (\S+)$", text, re.MULTILINE)
    return float(count)


def test_metrics_are_the_sum_over_workers_and_outlive_them(served: Served) -> None:
    assert post_on_new_connections(served, 40) == {202}
    assert {counted(served) for _ in range(10)} == {40}

    before = workers(served)
    assert len(before) == WORKERS
    os.kill(min(before), signal.SIGKILL)
    assert waited_for(lambda: len(workers(served)) == WORKERS and workers(served) != before)
    assert "ended with status -9" in served.log.read_text()
    assert waited_for(lambda: post_on_new_connections(served, 10) == {202})
    assert counted(served) >= 50


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_workers_stop_together(served: Served, number: signal.Signals) -> None:
    running = workers(served)
    assert served.stop(number) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)
    assert not accepts_connections(served.port)


def test_workers_do_not_outlive_their_parent(served: Served) -> None:
    running = workers(served)
    served.stop(signal.SIGKILL)
    assert waited_for(lambda: not accepts_connections(served.port))
    assert waited_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running))


def test_a_taken_port_is_one_clear_line(served: Served, module_environment: dict[str, str]) -> None:
    command = [
        str(Path(sys.executable).parent / "activity-platform"),
        "ingest",
        "--port",
        str(served.port),
    ]
    done = subprocess.run(
        command, env={**os.environ, **module_environment}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert str(served.port) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
