"""The app as its own process, as `activity-platform ingest` runs it, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import httpx
import psycopg

from activity_platform.ingest.auth import development_token
from activity_platform.local.server import free_port
from activity_platform.settings import Settings

EVENTS = "/api/v1/activity/events"
EDGES = "/api/v1/activity/edges"
START_SECONDS = 30

#: The command line with less patience for slow clients.
IMPATIENT = """
from activity_platform.cli import main
from activity_platform.ingest import protocol, request_body
protocol.HEAD_SECONDS = request_body.STALL_SECONDS = {seconds}
main()
"""


def event(**changes: Any) -> dict[str, Any]:
    """A valid event, with changes."""
    return {"verb": "view", "object_type": "event", "object_id": "p1", **changes}


def body(*events: Any) -> bytes:
    """A request's body. `json` writes lone surrogates and NUL as escapes."""
    return json.dumps({"events": list(events)}).encode()


def new_user() -> str:
    """A user whom no other test writes for."""
    return f"user-{uuid.uuid4()}"


class Served:
    """A running `activity-platform ingest`, within a `with` block."""

    def __init__(
        self,
        environment: Mapping[str, str],
        directory: Path,
        *,
        workers: int = 1,
        patience: float | None = None,
    ) -> None:
        self.settings = Settings.load(environment)
        self.log = directory / f"ingest-{uuid.uuid4()}.log"
        self._environment = environment
        self._workers = workers
        self._patience = patience
        self.port = free_port()
        self.client = httpx.Client(timeout=60)

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.stop()

    def start(self) -> None:
        """Starts, always on the same port, and returns when it serves."""
        command = [str(Path(sys.executable).parent / "activity-platform"), "ingest"]
        if self._patience is not None:
            command = [sys.executable, "-c", IMPATIENT.format(seconds=self._patience), "ingest"]
        options = ["--port", str(self.port), "--workers", str(self._workers)]
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                env={**os.environ, **self._environment},
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + START_SECONDS
        while f"listens on {self.url}" not in self.log.read_text()[before:]:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the app does not start"
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> int:
        """Resident bytes of the process."""
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, check=True
        )
        return int(told.stdout) * 1024

    def token(self, user: str, *, scope: str = "") -> str:
        return development_token(self.settings, user, scope=scope)

    def headers(self, user: str, **more: str) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.token(user)}",
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }

    def post(self, content: bytes, user: str, **headers: str) -> httpx.Response:
        """One request on a connection of its own."""
        return httpx.post(
            self.url + EVENTS, content=content, headers=self.headers(user, **headers), timeout=60
        )

    def get_edges(self, query: str, user: str, *, scope: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(user, scope=scope)}"}
        return self.client.get(f"{self.url}{EDGES}?{query}", headers=headers)

    def rows(self, user: str) -> list[dict[str, Any]]:
        """The user's stored events in the order of their ids."""
        with psycopg.connect(self.settings.database_url) as connection:
            found = connection.execute(
                "SELECT to_jsonb(e) FROM activity_events AS e WHERE user_id = %s ORDER BY id", [user]
            )
            return [row for (row,) in found]

    def connect(self) -> socket.socket:
        """A bare connection, for requests that no client library would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=40)

    def head(self, user: str, *lines: str, method: str = "POST", path: str = EVENTS) -> bytes:
        """A request's head with a valid token; `lines` follow."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.token(user)}"]
        return "\r\n".join([*head, "Content-Type: application/json", *lines, "", ""]).encode()

    def request(self, user: str, content: bytes) -> bytes:
        """A whole request for a bare connection."""
        return self.head(user, f"Content-Length: {len(content)}") + content


class Answer:
    """One HTTP answer as bytes came: status, headers (lower case) and body."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def read_answer(connection: socket.socket) -> Answer:
    """Reads exactly one answer; raises `ConnectionError` when the connection ends before."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _some(connection, 1)  # not a byte of the answer behind it
    status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    content = b""
    while missing := int(headers.get("content-length", "0")) - len(content):
        content += _some(connection, missing)
    return Answer(int(status_line.split()[1]), headers, content)


def _some(connection: socket.socket, most: int) -> bytes:
    received = connection.recv(most)
    if not received:
        raise ConnectionError("the connection ended before the answer did")
    return received


def faults(response: httpx.Response | Answer) -> list[tuple[int | None, str | None]]:
    """Index and field of each error that a 400 names."""
    content = response.json if isinstance(response, Answer) else response.json()
    return [
        (fault["index"], fault["field"]) for fault in cast(list[dict[str, Any]], content.get("errors", []))
    ]


def assert_problem(response: httpx.Response, status: int) -> None:
    """It is a problem of RFC 9457 of that status."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert response.json().items() >= {"type": "about:blank", "status": status}.items()
    assert response.json()["title"]
    assert response.json()["detail"]
