"""How long a producer waits for its effect: through ingest, sensors, schedules and runs.

Everything runs on this machine: the stack, ingest, Dagster's code server, daemon and webserver, with the
intervals that it has in production. The three paths go at the same time. Beside each stands the work alone,
done in this process on the same stack, without a queue's sensor or a schedule.

A last activity that finds no run under way waits for the sensor and for a run to start; those that follow
find the run draining.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import LiteralString

import httpx
import psycopg

from activity_platform.activity import rollup
from activity_platform.activity.maintenance import maintain_log
from activity_platform.gateways.queue import LAST_ACTIVITY
from activity_platform.ingest.app import EVENTS_PATH
from activity_platform.ingest.auth import development_token
from activity_platform.last_activity.drain import drain
from activity_platform.local.programs import Programs
from activity_platform.settings import Settings
from benchmarks._accounts import ORGANIZATION, Account, account, line_user_id
from benchmarks.harness import Comparison, Options, limit, say, stack

SAMPLES_ALONE = 10
EVENTS = 6
EVENTS_APART_SECONDS = 8  # so that they fall on all parts of the schedule's minute
SILENCES = 2
SILENCE_SECONDS = 45  # the drain waits 30 s for another message, and its run has to end
MESSAGES = 30
MESSAGES_APART_SECONDS = 0.5
IMPORTS = 6
MEMBERS = 100
PATIENCE_SECONDS = 180
LOOK_SECONDS = 0.02
DRAINING_SECONDS = 2

THROUGH, ALONE = "through the platform", "the work alone"

ADD_EVENT = """
    INSERT INTO activity_events (user_id, verb, object_type, object_id) VALUES (%s, 'save', 'event', 'one')
"""
ACTORS = "SELECT DISTINCT actor_id FROM interaction_edges"
MOVED = """
    SELECT coalesce(extract(epoch FROM last_activity_date) * 1000 >= %s, false)
    FROM line_user WHERE line_oa_id = %s AND line_user_id = %s
"""
DONE = "SELECT EXISTS (SELECT FROM audience_import WHERE audience_id = %s AND status = 'done')"


@dataclass
class Samples:
    """Seconds from the producer's call to the effect that a consumer sees."""

    event: list[float] = field(default_factory=list)
    first_activity: list[float] = field(default_factory=list)
    next_activity: list[float] = field(default_factory=list)
    audience: list[float] = field(default_factory=list)


def run(options: Options) -> Iterator[Comparison]:
    """Seconds of each path, through the platform and alone."""
    with stack() as running, account(Settings.load(running.environment)) as one:
        maintain_log(one.settings)
        one.know(MEMBERS)
        alone = _alone(one, options)
        with Programs(running.directory, running.environment) as programs:
            through = _through(one, programs.api_url, options)
    yield _comparison("an event, from its 202 to its edge", through.event, alone.event)
    yield _comparison(
        "a last activity after silence, to its row", through.first_activity, alone.first_activity
    )
    yield _comparison(
        "a last activity among others, to its row",
        through.next_activity,
        alone.next_activity,
        aim=DRAINING_SECONDS,
    )
    yield _comparison(f"an audience of {MEMBERS}, from its message to done", through.audience, alone.audience)


def _comparison(
    case: str, through: Sequence[float], alone: Sequence[float], aim: float | None = None
) -> Comparison:
    samples = {THROUGH: through, ALONE: alone}
    return Comparison("latency", case, "s", THROUGH, samples, [limit(ALONE)], aim, less_is_better=True)


def _alone(one: Account, options: Options) -> Samples:
    """The work of each path, called from here."""
    samples, path = Samples(), one.upload(MEMBERS)
    for number in range(options.size(SAMPLES_ALONE)):
        samples.event.append(_seconds(partial(_fold_one, one, f"alone-{number}")))
        samples.next_activity.append(_seconds(partial(_drain_one, one)))
        samples.audience.append(_seconds(partial(_import_one, one, path)))
    samples.first_activity = samples.next_activity
    return samples


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _fold_one(one: Account, actor: str) -> None:
    one.connection.execute(ADD_EVENT, [actor])
    rollup.fold(one.settings.database_url, lag_seconds=0)


def _drain_one(one: Account) -> None:
    _send_activity(one, line_user_id(1))
    drain(one.settings.database_url, one.services.queues)


def _import_one(one: Account, path: str) -> None:
    one.create(one.add_audience(), path)
    one.process()


def _through(one: Account, api_url: str, options: Options) -> Samples:
    """All paths at once, through the running platform, once it has done something."""
    samples = Samples()
    _send_import(one, one.upload(MEMBERS))
    with ThreadPoolExecutor() as threads:
        for path in [
            threads.submit(_events, one, api_url, options, samples.event),
            threads.submit(_activities, one, options, samples.first_activity, samples.next_activity),
            threads.submit(_imports, one, options, samples.audience),
        ]:
            path.result()
    return samples


def _events(one: Account, api_url: str, options: Options, seconds: list[float]) -> None:
    accepted: dict[str, float] = {}
    event = {"verb": "save", "object_type": "event", "object_id": "one"}
    with _connected(one) as connection, httpx.Client(base_url=api_url) as client:

        def all_folded() -> bool:
            for (actor,) in connection.execute(ACTORS):
                if actor in accepted:
                    seconds.append(time.monotonic() - accepted.pop(actor))
                    say(f"latency: an event: {seconds[-1]:.1f} s")
            return not accepted

        for number in range(options.size(EVENTS)):
            headers = {"Authorization": f"Bearer {development_token(one.settings, f'through-{number}')}"}
            client.post(EVENTS_PATH, headers=headers, json={"events": [event]}).raise_for_status()
            accepted[f"through-{number}"] = time.monotonic()
            next_one = time.monotonic() + EVENTS_APART_SECONDS
            while time.monotonic() < next_one:
                all_folded()
                time.sleep(LOOK_SECONDS)
        _wait_until(all_folded)


def _activities(one: Account, options: Options, first: list[float], others: list[float]) -> None:
    with _connected(one) as connection:
        for number in range(options.size(SILENCES)):
            if number:
                time.sleep(SILENCE_SECONDS)
            first.append(_seconds(partial(_move, one, connection)))
            say(f"latency: a last activity after silence: {first[-1]:.1f} s")
            for _ in range(options.size(MESSAGES)):
                others.append(_seconds(partial(_move, one, connection)))
                time.sleep(MESSAGES_APART_SECONDS)


def _move(one: Account, connection: psycopg.Connection) -> None:
    """Sends an activity and returns once it has reached its row."""
    user = line_user_id(1)
    keys = [_send_activity(one, user), one.line_oa_id, user]
    _wait_until(partial(_is_true, connection, MOVED, keys))


def _send_activity(one: Account, user: str) -> int:
    """Queues an activity; returns its time, in milliseconds since 1970."""
    message = {
        "lineUserId": user,
        "lineOaId": one.line_oa_id,
        "organizationId": ORGANIZATION,
        "activityType": "message",
        "activityStatus": "active",
    }
    return int(one.services.queues.publish(LAST_ACTIVITY, json.dumps(message)).split("-")[0])


def _imports(one: Account, options: Options, seconds: list[float]) -> None:
    path = one.upload(MEMBERS)
    for _ in range(options.size(IMPORTS)):
        seconds.append(_seconds(partial(_send_import, one, path)))
        say(f"latency: an audience: {seconds[-1]:.1f} s")


def _send_import(one: Account, path: str) -> None:
    """Sends a command and returns once it is done."""
    audience = one.add_audience()
    one.create(audience, path)
    _wait_until(partial(_is_true, one.connection, DONE, [audience]))


def _connected(one: Account) -> psycopg.Connection:
    return psycopg.connect(one.settings.database_url, autocommit=True)


def _is_true(connection: psycopg.Connection, statement: LiteralString, keys: Sequence[object]) -> bool:
    ((found,),) = connection.execute(statement, keys)
    return bool(found)


def _wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {PATIENCE_SECONDS} s")
        time.sleep(LOOK_SECONDS)
