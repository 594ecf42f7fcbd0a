"""Clients that post sessions of events, and what each was told."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from activity_platform.ingest.auth import development_token
from activity_platform.local.demo_traffic import Event, Session, sessions
from activity_platform_tests.chaos.site import Site
from activity_platform_tests.ingest.served import EVENTS

CLIENTS = 3
USERS = 20
PAUSE_SECONDS = 0.1
FAULTY = 0.03
WITH_KEY = 0.5


@dataclass
class Posted:
    """One request. With `key` it was repeated until it was accepted.

    `told` are the statuses of its tries, None where no answer came; `unconfirmed` is the one 503 that says
    itself that nobody knows.
    """

    number: int
    session: Session
    key: str | None
    faulty: bool
    told: list[int | None] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    unconfirmed: bool = False

    @property
    def allowed(self) -> set[int]:
        """How many rows there may be of it."""
        size = len(self.session.events)
        if self.faulty:
            return {0}
        if 202 in self.told:
            return {size}
        return {0, size} if None in self.told or self.unconfirmed else {0}


class EventTraffic:
    """What was posted, by number of the request; each event carries that number in its context."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._seed = seed
        self._settings = site.settings
        self.posted: dict[int, Posted] = {}

    def client(self, number: int, stop: threading.Event) -> None:
        """One client's life: session after session, each with or without a key."""
        chance = random.Random(f"{self._seed} client {number}")
        with httpx.Client(timeout=60) as client:
            for request in self._requests(number, chance):
                self.posted[request.number] = request
                self._post(client, request)
                while request.key is not None and not request.faulty and request.told[-1] != 202:
                    stop.wait(PAUSE_SECONDS)
                    self._post(client, request)
                if stop.wait(PAUSE_SECONDS * 2 * chance.random()):
                    return

    def _requests(self, client: int, chance: random.Random) -> Iterator[Posted]:
        made = sessions(USERS, 10**9, prefix=f"c{client}-", seed=self._seed * CLIENTS + client)
        for count, session in enumerate(made):
            number = count * CLIENTS + client
            events = [_numbered(event, number) for event in session.events]
            faulty = chance.random() < FAULTY
            if faulty:
                events[chance.randrange(len(events))]["verb"] = "vanish"
            key = f"key-{number}" if chance.random() < WITH_KEY else None
            yield Posted(number, Session(session.user, events), key, faulty)

    def _post(self, client: httpx.Client, request: Posted) -> None:
        headers = {
            "Authorization": f"Bearer {development_token(self._settings, request.session.user)}",
            "Content-Type": "application/json",
        } | ({"Idempotency-Key": request.key} if request.key else {})
        content = json.dumps({"events": request.session.events})
        try:
            answer = client.post(self._site.api_url + EVENTS, content=content, headers=headers)
        except httpx.TransportError:
            request.told.append(None)
            return
        request.told.append(answer.status_code)
        if answer.status_code == 202:
            request.accepted.append(answer.json()["accepted"])
        request.unconfirmed |= answer.status_code == 503 and "may be stored" in answer.json()["detail"]


def _numbered(event: Event, number: int) -> Event:
    return {**event, "context": {**event.get("context", {}), "request": number}}
