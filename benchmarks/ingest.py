"""Ingest over HTTP: group commit beside a transaction a request, beside no write at all, and beside COPY.

The app's processes, the load generator and PostgreSQL share the machine. The load comes over many keep-alive
connections; each sends its next request when it has read the last answer. A rate is in events a second.
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
from benchmarks.harness import Comparison, Options, Target, compare, stack

SECONDS = 4
WARM_UP = 0.25
PROCESSES = 2  # of the app, one a core
CONNECTIONS = 256
USERS = 64
COPIED_EVENTS = 400_000

GROUP_COMMIT, PER_REQUEST, NO_WRITE, COPY = (
    "group commit", "a transaction a request", "no write", "server-side COPY",
)  # fmt: skip


def run(options: Options) -> Iterator[Comparison]:
    """Requests of 10 and of 100 events."""
    with stack() as services:
        settings = Settings.load(services.environment)
        with (
            _served(settings, _as_it_is) as grouped,
            _served(settings, _per_request) as single,
            _served(settings, _without_write) as unwritten,
        ):
            yield compare(
                "ingest",
                "requests of 10 events",
                "events/s",
                {
                    GROUP_COMMIT: _load(settings, grouped, 10, options),
                    PER_REQUEST: _load(settings, single, 10, options),
                    NO_WRITE: _load(settings, unwritten, 10, options),
                },
                options,
                [Target(GROUP_COMMIT, PER_REQUEST, 2.0), Target(GROUP_COMMIT, NO_WRITE, 0.45)],
            )
            yield compare(
                "ingest",
                "requests of 100 events",
                "events/s",
                {
                    GROUP_COMMIT: _load(settings, grouped, 100, options),
                    COPY: _copy(settings, services.directory, options),
                },
                options,
                [Target(GROUP_COMMIT, COPY, 0.45)],
            )


# The variants of the app


def _as_it_is() -> None:
    """The app unchanged."""


def _per_request() -> None:
    """A batch is one request, and as many write side by side as a usual connection pool holds."""
    writer.MAX_BATCH_BYTES = 1
    writer.CONNECTIONS = 16


def _without_write() -> None:
    async def append(_: object, submissions: Sequence[Submission]) -> list[int]:
        return [item.count for item in submissions]

    event_log.append = append  # type: ignore[assignment]


@contextmanager
def _served(settings: Settings, change: Callable[[], None]) -> Iterator[Sequence[int]]:
    """The app with a change, in processes of its own, warm; yields their ports.

    Each listens for itself, so that all have the same number of connections in every variant.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as opened:
        listeners = [
            opened.enter_context(socket.create_server((HOST, 0), backlog=2048)) for _ in range(PROCESSES)
        ]
        ready = context.Barrier(PROCESSES + 1)
        processes = [
            context.Process(target=_serve, args=(settings, listener, change, ready), daemon=True)
            for listener in listeners
        ]
        for process in processes:
            process.start()
            opened.callback(_stop, process)
        ready.wait()
        ports = [int(listener.getsockname()[1]) for listener in listeners]
        _load(settings, ports, 10, Options(scale=WARM_UP))()
        yield ports


def _serve(settings: Settings, listener: socket.socket, change: Callable[[], None], ready: Barrier) -> None:
    change()
    with Path(os.devnull).open("w") as nowhere:
        sys.stderr = nowhere  # where the access log goes
        run_app(settings, listener, on_ready=lambda: _wait(ready), stop_signals=(signal.SIGTERM,))


def _wait(ready: Barrier) -> None:
    ready.wait()


def _stop(process: BaseProcess) -> None:
    process.terminate()
    process.join()


# The load


def _load(settings: Settings, ports: Sequence[int], size: int, options: Options) -> Callable[[], float]:
    """A function that sends requests of `size` events for a while and returns events accepted a second."""
    requests = [_request(settings, f"user{number}", size) for number in range(USERS)]
    seconds = SECONDS * options.scale

    def measure() -> float:
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            connection.execute("TRUNCATE activity_events")
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


# The yardstick


def _copy(settings: Settings, directory: Path, options: Options) -> Callable[[], float]:
    """A function that has PostgreSQL copy such rows from a file on its own disk; returns events a second."""
    count = options.size(COPIED_EVENTS)
    users = [f"user{number}" for number in range(USERS)]
    rows = b"".join(event_log.submission(user, events.parse(_body(user, 100))).rows for user in users)
    lines = itertools.islice(itertools.cycle(rows.splitlines(keepends=True)), count)
    file = directory / "events.copy"
    file.write_bytes(b"".join(lines))
    statement = sql.SQL(event_log.COPY_EVENTS.replace("STDIN", "{}")).format(str(file))

    def measure() -> float:
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            connection.execute("TRUNCATE activity_events")
            started = time.perf_counter()
            connection.execute(statement)
            return count / (time.perf_counter() - started)

    return measure
