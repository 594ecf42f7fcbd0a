"""Connections for short reads: kept open between requests, and renewed at once after an outage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg

from activity_platform.gateways import postgres

#: A read that waits behind a lock must not hold its thread for long.
SESSION = "SET statement_timeout = '5s'"

T = TypeVar("T")


class Reader:
    """Runs reads on kept connections, from any thread. Each read has a connection to itself meanwhile."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._idle: list[psycopg.Connection] = []
        self._closed = False
        self._lock = threading.Lock()

    def read(self, query: Callable[[psycopg.Connection], T]) -> T:
        """What `query` returns. It may run twice: a kept connection may turn out to be gone.

        Raises `postgres.DatabaseAway`.
        """
        kept = self._take()
        if kept is not None:
            try:
                return self._run(kept, query)
            except postgres.DatabaseAway:
                self._close_idle()  # what broke this one broke the others
        return self._run(self._connect(), query)

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _connect(self) -> psycopg.Connection:
        connection = postgres.connect(self._database_url, application_name="activity-platform ingest")
        connection.execute(SESSION)
        return connection

    def _run(self, connection: psycopg.Connection, query: Callable[[psycopg.Connection], T]) -> T:
        try:
            with postgres.outages_named():
                return query(connection)
        except psycopg.errors.QueryCanceled as error:
            raise postgres.DatabaseAway("PostgreSQL did not answer in time") from error
        finally:
            self._put_back(connection)

    def _take(self) -> psycopg.Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _put_back(self, connection: psycopg.Connection) -> None:
        with self._lock:
            if not connection.closed and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
