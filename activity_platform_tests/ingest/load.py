"""Clients that post without a pause and write down what they were told."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

import httpx
import psycopg

from activity_platform_tests.ingest.served import EVENTS, Served, body, event, new_user

CLIENTS = 8


@dataclass
class Told:
    """What a client was told of its request: a status, or None when no answer came.

    `connected` is False when nobody listened, so that nothing was sent.
    """

    size: int
    status: int | None
    accepted: int = 0
    connected: bool = True


@dataclass
class Load:
    """Clients under way within a `with` block. Each request is of a user of its own."""

    api: Served
    told: dict[str, Told] = field(default_factory=dict)

    def __enter__(self) -> Load:
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number: int) -> None:
        """Keep-alive, with new connections after failures; some requests have a key."""
        count = number
        with httpx.Client(timeout=60) as client:
            while not self._ending.is_set():
                count += 1
                user, size = new_user(), count % 9 + 1
                headers = self.api.headers(user, **({"Idempotency_Key": "k"} if count % 3 == 0 else {}))
                try:
                    response = client.post(
                        self.api.url + EVENTS, content=body(*[event()] * size), headers=headers
                    )
                except httpx.TransportError as error:
                    self.told[user] = Told(size, None, connected=not isinstance(error, httpx.ConnectError))
                    self._ending.wait(0.02)
                else:
                    accepted = response.json()["accepted"] if response.status_code == 202 else 0
                    self.told[user] = Told(size, response.status_code, accepted)

    def statuses(self) -> set[int | None]:
        return {told.status for told in self.told.values()}

    def check(self) -> None:
        """A 202 has exactly its rows, another answer none, and a request without an answer all or none."""
        stored = _stored(self.api.settings.database_url)
        for user, told in self.told.items():
            allowed = {202: {told.size}, None: {0, told.size}}.get(told.status, {0})
            assert stored.get(user, 0) in allowed, told
            assert told.status != 202 or told.accepted == told.size


def _stored(database_url: str) -> Mapping[str, int]:
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT user_id, count(*) FROM activity_events GROUP BY user_id")
        return dict(found.fetchall())
