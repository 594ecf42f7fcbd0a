"""A CMS that changes audiences all the time, and what their members must then be."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import psycopg

from activity_platform.gateways.queue import (
    CREATE_AUDIENCE,
    DELETE_AUDIENCE,
    MOOKEPT_AUDIENCE,
    UPDATE_AUDIENCE,
    QueueAway,
)
from activity_platform_tests.audience_world import World
from activity_platform_tests.simulated_line import user_id

AUDIENCES = 5
POISON = 0.05
RETRY_SECONDS = 0.1

#: (rule, LINE user id, event, queue, message id)
Firing = tuple[int, str, str, str, str]


@dataclass(frozen=True)
class Command:
    """A message as its producer means it. `add` is mookept's action."""

    audience: int
    queue: str
    message_id: str
    ids: frozenset[str] = frozenset()
    add: bool = False

    def members_after(self, before: frozenset[str]) -> frozenset[str]:
        if self.queue == DELETE_AUDIENCE:
            return frozenset()
        if self.queue == MOOKEPT_AUDIENCE:
            return before | self.ids if self.add else before - self.ids
        return self.ids


@dataclass(frozen=True)
class Outcome:
    """What the commands come to, one after the other: members an audience, status a message, firings."""

    members: dict[int, frozenset[str]]
    statuses: dict[tuple[str, str], str]
    firings: Counter[Firing]


class AudienceTraffic:
    """`sent` are the commands in their order, `poison` how often each worthless payload was sent."""

    def __init__(
        self, seed: int, world: World, *, users: int, most_ids: int, commands: int, pause: float
    ) -> None:
        self._chance = random.Random(f"{seed} audiences")
        self._world = world
        self._users = users
        self._most_ids = most_ids
        self._count = commands
        self._pause = pause
        self.sent: list[Command] = []
        self.poison: Counter[bytes] = Counter()
        self.audiences = [world.add_audience({"color": "red"}) for _ in range(AUDIENCES)]
        self.rules = {
            (audience, event): world.add_rule(audience, event)
            for audience in self.audiences
            for event in ("added", "removed")
        }

    def run(self, stop: threading.Event) -> None:
        """One message after the other, up to so many. The last one comes after everything else: its worker
        sends what a killed one fired."""
        for command in islice(self._commands(), self._count):
            self._publish(command)
            if self._chance.random() < POISON:
                self._publish_poison()
            if stop.wait(self._pause * 2 * self._chance.random()):
                break
        stop.wait()
        self._publish(self._command(self.audiences[0], MOOKEPT_AUDIENCE, 1, add=True))

    def expected(self) -> Outcome:
        """By the rules of the platform's description, without its code."""
        members: dict[int, frozenset[str]] = dict.fromkeys(self.audiences, frozenset())
        deleted: set[int] = set()
        outcome = Outcome(members, {}, Counter())
        for command in self.sent:
            key = (command.queue, command.message_id)
            if command.audience in deleted:
                outcome.statuses[key] = "skipped"
                continue
            outcome.statuses[key] = "done"
            before = members[command.audience]
            after = members[command.audience] = command.members_after(before)
            for event, users in (("added", after - before), ("removed", before - after)):
                rule = self.rules[command.audience, event]
                outcome.firings.update((rule, user, event, *key) for user in users)
            if command.queue == DELETE_AUDIENCE:
                deleted.add(command.audience)
        return outcome

    def _commands(self) -> Iterator[Command]:
        for audience in self.audiences:
            yield self._command(audience, CREATE_AUDIENCE, self._most_ids)
        while True:
            audience = self._chance.choice(self.audiences)
            queue = self._chance.choice((UPDATE_AUDIENCE, *[MOOKEPT_AUDIENCE] * 2))
            if audience == self.audiences[-1] and self._chance.random() < 0.2:
                queue = DELETE_AUDIENCE  # what follows for it comes too late
            yield self._command(audience, queue, self._chance.choice((3, self._most_ids)))

    def _command(self, audience: int, queue: str, most: int, *, add: bool | None = None) -> Command:
        chance = self._chance
        numbers = chance.sample(range(self._users), chance.randint(1, most))
        ids = frozenset() if queue == DELETE_AUDIENCE else frozenset(map(user_id, numbers))
        adds = chance.random() < 0.5 if add is None else add
        return Command(audience, queue, f"m{len(self.sent)}", ids, adds and queue == MOOKEPT_AUDIENCE)

    def _publish(self, command: Command) -> None:
        """An unanswered try may have been taken: the message id tells the second one for what it is."""
        more: dict[str, str] = {"message_id": command.message_id}
        if command.queue == MOOKEPT_AUDIENCE:
            more["actionType"] = "add" if command.add else "remove"
        if command.queue != DELETE_AUDIENCE:
            more["filePath"] = self._world.upload(sorted(command.ids))
        self._insist(lambda: self._world.send(command.queue, command.audience, **more))
        self.sent.append(command)

    def _publish_poison(self) -> None:
        payload = f"poison {len(self.sent)}".encode()

        def publish() -> str:
            self.poison[payload] += 1
            return self._world.services.queues.publish(UPDATE_AUDIENCE, payload)

        self._insist(publish)

    def _insist(self, publish: Callable[[], object]) -> None:
        pause = threading.Event()
        while True:
            try:
                publish()
            except QueueAway:
                pause.wait(RETRY_SECONDS)
            else:
                return


def reconnect(world: World, database_url: str) -> None:
    """The world's own connection did not outlive the kills."""
    world.connection.close()
    world.connection = psycopg.connect(database_url, autocommit=True)


def forget_heartbeats(world: World) -> None:
    """For the short form: a killed worker's last heartbeat is as good as old. It would be in 15 seconds."""
    world.connection.execute("UPDATE message_attempt SET heartbeat_at = heartbeat_at - interval '1 hour'")
