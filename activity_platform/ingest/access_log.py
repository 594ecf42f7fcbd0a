"""One JSON line a request on standard error, and its time and status in the metrics.

A line tells method, path, status and milliseconds, and the reason of a refusal. It holds no header, query or
body: no token, no user and no context ever gets into it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from http import HTTPStatus
from threading import Event, Thread
from typing import TextIO

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.problems import REFUSAL

MAX_WAITING_LINES = 10_000
WRITE_SECONDS = 0.2

#: In place of a path or method that is none of ours: both come from the client and may hold anything.
OTHER = "other"
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}


class Line(msgspec.Struct, omit_defaults=True):
    """What is told of one request. `time` is seconds since 1970."""

    time: float
    method: str
    path: str
    status: int
    milliseconds: float
    refusal: str | None = None


class AccessLog:
    """Lines on their way to a stream. Written by a thread of its own: a reader that stops must not stop us.

    When lines come faster than the stream takes them, the oldest are lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[Line] = deque(maxlen=MAX_WAITING_LINES)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, as long as the stream takes it at once."""
        self._stopped.set()
        self._thread.join(timeout=1)

    def add(self, line: Line) -> None:
        self._lines.append(line)

    def _run(self) -> None:
        while not self._stopped.wait(WRITE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        lines = []
        while self._lines:
            lines.append(msgspec.json.encode(self._lines.popleft()).decode())
        if lines:
            try:
                print(*lines, sep="\n", file=self._stream, flush=True)
            except (OSError, ValueError):
                return  # nobody reads any more


class Observed:
    """ASGI middleware around everything else. `paths` are those that are told by name."""

    def __init__(self, app: ASGIApp, log: AccessLog, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._log = log
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else OTHER
        method = scope["method"] if scope["method"] in METHODS else OTHER
        refusal = scope.get(REFUSAL)
        self._metrics.answered(path, status, seconds, refusal)
        self._log.add(Line(time.time(), method, path, status, round(seconds * 1000, 2), refusal))
