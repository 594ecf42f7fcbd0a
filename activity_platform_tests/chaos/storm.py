"""A storm over the platform: traffic on all paths, kill after kill, then rest. What remains is `Evidence`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psycopg
import pytest

from activity_platform.audience.messages import AUDIENCE_QUEUES
from activity_platform.gateways.queue import LAST_ACTIVITY
from activity_platform_tests.audience_world import world_of
from activity_platform_tests.chaos.activity_traffic import ActivityTraffic
from activity_platform_tests.chaos.audience_traffic import AudienceTraffic, forget_heartbeats, reconnect
from activity_platform_tests.chaos.event_traffic import CLIENTS, EventTraffic
from activity_platform_tests.chaos.invariants import Evidence
from activity_platform_tests.chaos.site import Site, Victim
from activity_platform_tests.chaos.watermark_watch import WatermarkWatch
from activity_platform_tests.simulated_line import user_ids

LOOK_SECONDS = 0.5
TELL_SECONDS = 15.0

UNFOLDED = """
SELECT (SELECT max(created_at) FROM activity_events) > watermark FROM activity_rollup_state
WHERE name = 'interaction_edges'
"""
UNSENT = "SELECT count(*) FROM trigger_firing WHERE published_at IS NULL"


@dataclass(frozen=True)
class Plan:
    """How rough it gets. `seconds` is how long kills and commands on audiences are spread over; the traffic
    ends with the last kill. `patience_seconds`: nothing at all happens for so long only if it is stuck."""

    kills: int
    seconds: float
    patience_seconds: float
    with_dagster: bool
    durable: bool
    users: int
    most_ids: int
    commands: int


@contextmanager
def storm(directory: Path, seed: int, plan: Plan) -> Iterator[Evidence]:
    """Within it, the platform is at rest again after a storm that the seed decides."""
    chance = random.Random(seed)
    say = _Teller(seed)
    with ExitStack() as stack:
        site = stack.enter_context(
            Site(directory, chance, with_dagster=plan.with_dagster, durable=plan.durable)
        )
        evidence = _prepare(site, seed, plan, stack)
        say(f"{plan.kills} kills of {len(site.victims)} kinds; logs in {site.logs}")
        with _under_way(evidence):
            _kill(site, chance, plan, say)
        reconnect(evidence.world, site.settings.database_url)
        if plan.with_dagster:
            site.stop_commands()
        else:
            forget_heartbeats(evidence.world)
        _await_rest(evidence, site, plan.patience_seconds, say)
        site.stop_commands()
        yield evidence


class _Teller:
    """A line for whoever watches, with the seconds since the start."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        click.echo(f"seed {self._seed} {time.monotonic() - self._began:6.1f} s  {text}", err=True)


def _prepare(site: Site, seed: int, plan: Plan, stack: ExitStack) -> Evidence:
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in site.environment.items():
        if name.startswith("AWS_"):
            patch.setenv(name, value)
    connection = psycopg.connect(site.settings.database_url, autocommit=True)
    world = stack.enter_context(world_of(site.settings, connection))
    stack.callback(lambda: world.connection.close())
    ids = user_ids(plan.users)
    world.add_users(ids[: plan.users // 2])
    return Evidence(
        site.settings,
        world,
        EventTraffic(site, seed),
        ActivityTraffic(site, seed, world, plan.users // 2),
        AudienceTraffic(
            seed,
            world,
            users=plan.users,
            most_ids=plan.most_ids,
            commands=plan.commands,
            pause=plan.seconds / plan.commands,
        ),
        WatermarkWatch(site),
    )


@contextmanager
def _under_way(evidence: Evidence) -> Iterator[None]:
    """Within it, there is traffic on all paths. Raises what a producer raised."""
    stop = threading.Event()
    with ThreadPoolExecutor(CLIENTS + 3) as pool:
        tasks = [pool.submit(evidence.events.client, number, stop) for number in range(CLIENTS)]
        tasks += [
            pool.submit(one.run, stop)
            for one in (evidence.activities, evidence.audiences, evidence.watermark)
        ]
        try:
            yield
        finally:
            stop.set()
    for task in tasks:
        task.result()


def _kill(site: Site, chance: random.Random, plan: Plan, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    turns = _turns(site.victims, chance)
    killed = 0
    while killed < plan.kills:
        moment = began + plan.seconds * (killed + chance.random()) / plan.kills
        time.sleep(max(0.0, moment - time.monotonic()))
        victim = next(turns)
        if (what := victim.kill()) is None:
            continue
        killed += 1
        say(f"kill {killed:2} of {plan.kills}: {victim.name}, {what}")
        victim.restore()
        for name in site.revive():
            say(f"{name} had ended by itself; started again")


def _turns(victims: Sequence[Victim], chance: random.Random) -> Iterator[Victim]:
    """All in a random order, then all in another one, and so on."""
    while True:
        yield from chance.sample(victims, len(victims))


def _await_rest(evidence: Evidence, site: Site, patience: float, say: Callable[[str], None]) -> None:
    say("no more kills and no more traffic; waiting for what is left to be done")
    began = moved = told = time.monotonic()
    before = ""
    while awaited := _awaited(evidence):
        if awaited != before:
            before, moved = awaited, time.monotonic()
        if time.monotonic() > told + TELL_SECONDS:
            told = time.monotonic()
            say(f"still {awaited}")
        assert time.monotonic() < moved + patience, f"stuck for {patience:.0f} s: {awaited} (see {site.logs})"
        time.sleep(LOOK_SECONDS)
        for name in site.revive():
            say(f"{name} had ended by itself; started again")
    say(f"at rest after {time.monotonic() - began:.1f} s")


def _awaited(evidence: Evidence) -> str:
    """What has yet to happen; empty once everything has."""
    waiting = {queue: evidence.queues.depth(queue) for queue in (LAST_ACTIVITY, *AUDIENCE_QUEUES)}
    ((unfolded,),) = evidence.connection.execute(UNFOLDED)
    ((unsent,),) = evidence.connection.execute(UNSENT)
    parts = [f"{depth} entries in {queue}" for queue, depth in waiting.items() if depth]
    return ", ".join(
        [*parts, *["unfolded events"] * bool(unfolded), *[f"{unsent} firings to send"] * bool(unsent)]
    )
