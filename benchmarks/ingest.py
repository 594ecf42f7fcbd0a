"""Ingest over HTTP: group commit beside a transaction a request, beside no write at all, and beside COPY.

The app's processes, the load generator and PostgreSQL share the machine. The load comes over many keep-alive
connections; each sends its next request when it has read the last answer. A rate is in events a second.
The transaction a request is once the app itself, changed in nothing else, and once a FastAPI app with
SQLAlchemy (`_fastapi_app`). The last case writes to a log that holds ten times the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import cast

import psycopg
import uvloop
from psycopg import sql

from activity_platform.activity import event_log, events
from activity_platform.activity.event_log import Submission
from activity_platform.activity.vocabulary import ObjectType, Verb
from activity_platform.ingest import writer
from activity_platform.ingest.app import EVENTS_PATH
from activity_platform.ingest.auth import development_token
from activity_platform.ingest.process import run as run_app
from activity_platform.local.server import HOST
from activity_platform.settings import Settings
from benchmarks import _fastapi_app
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer, stack

SECONDS = 3
WARM_UP = 0.25
PROCESSES = 2  # of the app, one a core
CONNECTIONS = 256
USERS = 64
COPIED_EVENTS = 400_000
LOGGED_EVENTS = 100_000
TIMES = 10

GROUP_COMMIT, PER_REQUEST, NO_WRITE, COPY = (
    "group commit", "a transaction a request", "no write", "server-side COPY",
)  # fmt: skip
FASTAPI = "FastAPI and SQLAlchemy"

App = Callable[[Settings, socket.socket, Callable[[], None]], None]


def run(options: Options) -> Iterator[Comparison]:
    """Requests of 10 and of 100 events, and a log that holds more."""
    with stack() as services:
        settings = Settings.load(services.environment)
        copy = _Copy(settings, services.directory)
        with (
            _served(settings, _as_it_is) as grouped,
            _served(settings, _per_request) as single,
            _served(settings, _fastapi_app.serve) as fastapi,
            _served(settings, _without_write) as unwritten,
        ):
            yield compare(
                "ingest",
                "requests of 10 events",
                "events/s",
                {
                    GROUP_COMMIT: _load(settings, grouped, 10, options),
                    PER_REQUEST: _load(settings, single, 10, options),
                    FASTAPI: _load(settings, fastapi, 10, options),
                    NO_WRITE: _load(settings, unwritten, 10, options),
                },
                options,
                [peer(PER_REQUEST, 2.0), peer(FASTAPI, 2.0), limit(NO_WRITE, 0.45)],
            )
            yield compare(
                "ingest",
                "requests of 100 events",
                "events/s",
                {
                    GROUP_COMMIT: _load(settings, grouped, 100, options),
                    FASTAPI: _load(settings, fastapi, 100, options),
                    COPY: lambda: copy.into_empty_log(options.size(COPIED_EVENTS)),
                },
                options,
                [peer(FASTAPI, 2.0), limit(COPY, 0.45)],
            )
        with _served(settings, _as_it_is) as grouped:
            yield _growth(settings, copy, grouped, options)


def _growth(settings: Settings, copy: _Copy, ports: Sequence[int], options: Options) -> Comparison:
    rows = options.size(LOGGED_EVENTS)
    less, more = f"onto {rows:,} logged events", f"onto {TIMES * rows:,} logged events"

    def among(logged: int) -> Callable[[], float]:
        return _load(settings, ports, 10, options, prepare=lambda: copy.into_empty_log(logged))

    return compare(
        "ingest",
        f"{TIMES} times the log",
        "events/s",
        {more: among(TIMES * rows), less: among(rows)},
        options,
        [base(less, FLAT)],
    )


# The variants of the app


def _as_it_is(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    with Path(os.devnull).open("w") as nowhere:
        sys.stderr = nowhere  # where the access log goes
        run_app(settings, listener, on_ready=on_ready, stop_signals=(signal.SIGTERM,))


def _per_request(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """A batch is one request, and as many write side by side as a usual connection pool holds."""
    writer.MAX_BATCH_BYTES = 1
    writer.CONNECTIONS = 16
    _as_it_is(settings, listener, on_ready)


def _without_write(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    async def append(_: object, submissions: Sequence[Submission]) -> list[int]:
        return [item.count for item in submissions]

    event_log.append = append  # type: ignore[assignment]
    _as_it_is(settings, listener, on_ready)


@contextmanager
def _served(settings: Settings, app: App) -> Iterator[Sequence[int]]:
    """The app in processes of its own, warm; yields their ports.

    Each listens for itself, so that all have the same number of connections in every variant.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as opened:
        listeners = [
            opened.enter_context(socket.create_server((HOST, 0), backlog=2048)) for _ in range(PROCESSES)
        ]
        ready = context.Barrier(PROCESSES + 1)
        processes = [
            context.Process(target=_serve, args=(app, settings, listener, ready), daemon=True)
            for listener in listeners
        ]
        for process in processes:
            process.start()
            opened.callback(_stop, process)
        ready.wait()
        ports = [int(listener.getsockname()[1]) for listener in listeners]
        _load(settings, ports, 10, Options(scale=WARM_UP))()
        yield ports


def _serve(app: App, settings: Settings, listener: socket.socket, ready: Barrier) -> None:
    app(settings, listener, lambda: _wait(ready))


def _wait(ready: Barrier) -> None:
    ready.wait()


def _stop(process: BaseProcess) -> None:
    process.terminate()
    process.join()


# The load


def _load(
    settings: Settings,
    ports: Sequence[int],
    size: int,
    options: Options,
    prepare: Callable[[], object] | None = None,
) -> Callable[[], float]:
    """A function that sends requests of `size` events for a while and returns events accepted a second.

    `prepare` makes the log what it is before the first; by default it is empty.
    """
    requests = [_request(settings, f"user{number}", size) for number in range(USERS)]
    seconds = SECONDS * options.scale

    def empty_log() -> None:
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            connection.execute("TRUNCATE activity_events")

    def measure() -> float:
        (prepare or empty_log)()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_send(ports, requests, seconds)) * size

    return measure


async def _send(ports: Sequence[int], requests: Sequence[bytes], seconds: float) -> float:
    """Requests accepted a second."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    source = itertools.cycle(requests)
    clients = [
        (await loop.create_connection(lambda: _Client(source, ends), HOST, ports[number % len(ports)]))[1]
        for number in range(CONNECTIONS)
    ]
    started = time.perf_counter()
    await asyncio.gather(*(client.ended for client in clients))
    return sum(client.accepted for client in clients) / (time.perf_counter() - started)


class _Client(asyncio.Protocol):
    """One connection: the next request when the last answer came. Cheap: the processor is for the app."""

    def __init__(self, requests: Iterator[bytes], ends: float) -> None:
        self._requests = requests
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self.accepted = 0
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 202"):
            self.ended.set_exception(RuntimeError(f"not accepted: {data[:200]!r}"))
            self._transport.close()
            return
        if not data.endswith(b"}"):
            return  # the head alone; the body follows
        self.accepted += 1
        if self._loop.time() < self._ends:
            self._transport.write(next(self._requests))
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _request(settings: Settings, user: str, size: int) -> bytes:
    body = _body(user, size)
    token = development_token(settings, user)
    head = (
        f"POST {EVENTS_PATH} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _body(user: str, size: int) -> bytes:
    """Events as an app's feed makes them: some with a context of rank, query and session."""
    chance = random.Random(user)
    verbs, object_types = list(Verb), list(ObjectType)
    made = [
        {
            "verb": chance.choice(verbs),
            "object_type": chance.choice(object_types),
            "object_id": f"{chance.getrandbits(64):016x}",
            "surface": chance.choice(["feed", "search", "map", "profile"]),
            "context": {
                "rank": number,
                "query": "coffee near me",
                "session": f"{chance.getrandbits(64):016x}",
            },
        }
        for number in range(size)
    ]
    return json.dumps({"events": made}).encode()


# The limit


class _Copy:
    """Rows as the app writes them, copied by PostgreSQL from a file on its own disk."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings = settings
        self._file = directory / "events.copy"
        users = [f"user{number}" for number in range(USERS)]
        rows = b"".join(event_log.submission(user, events.parse(_body(user, 100))).rows for user in users)
        self._lines = rows.splitlines(keepends=True)

    def into_empty_log(self, count: int) -> float:
        """Events a second."""
        self._file.write_bytes(b"".join(itertools.islice(itertools.cycle(self._lines), count)))
        statement = sql.SQL(event_log.COPY_EVENTS.replace("STDIN", "{}")).format(str(self._file))
        with psycopg.connect(self._settings.database_url, autocommit=True) as connection:
            connection.execute("TRUNCATE activity_events")
            started = time.perf_counter()
            connection.execute(statement)
            return count / (time.perf_counter() - started)
