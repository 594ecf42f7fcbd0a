"""Signs of life of a worker: a thread that beats, and writes down how far the work is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

from activity_platform.audience import attempts, imports
from activity_platform.audience.imports import Work
from activity_platform.failures import PlatformError

BEAT_SECONDS = 3.0
LOG_SECONDS = 15.0

Connect = Callable[[], psycopg.Connection]


class Pulse:
    """Within it, `message_attempt` is given a heartbeat and `audience_import.stats` the progress of the work,
    every few seconds, on a connection of its own: a long statement of the worker doesn't stop it.

    A database that is away is noticed by the worker itself, so the pulse only logs it.
    """

    def __init__(self, connect: Connect, work: Work, step: str, log: logging.Logger) -> None:
        self._connect = connect
        self._work = work
        self._step = step
        self._log = log
        self._progress = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"pulse of import {work.import_id}", daemon=True
        )

    def at(self, done: int, of: int) -> None:
        """So much of the step is done. Users, ids or changes: what the step counts."""
        self._progress = (done, of)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        logged_at = time.monotonic()
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self._beat()
            except (psycopg.Error, PlatformError) as error:
                self._log.warning("no heartbeat could be written: %s", type(error).__name__)
            if time.monotonic() - logged_at >= LOG_SECONDS:
                logged_at = time.monotonic()
                self._log.info("import %s: %s, %s of %s", self._work.import_id, self._step, *self._progress)

    def _beat(self) -> None:
        done, of = self._progress
        with self._connect() as connection:
            attempts.beat(connection, self._work.queue, self._work.message_id)
            imports.add_stats(connection, self._work.import_id, {"step": self._step, "done": done, "of": of})
