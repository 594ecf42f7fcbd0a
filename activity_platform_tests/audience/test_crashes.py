"""Workers that are killed: the next one goes on, and everything ends exactly once."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from activity_platform.audience import endings, firings, imports, membership, process, users
from activity_platform.audience.integration import open_services
from activity_platform.audience.lock import AudienceBusy, audience_lock
from activity_platform.audience.services import ImportRef, MessageResult
from activity_platform.audience.worker import process_queues
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import HASTY, LOG, World
from activity_platform_tests.simulated_line import SimulatedLine, user_ids

A, B, C, D = (f"U{letter * 32}" for letter in "abcd")

WORKER = """
import logging, os
from activity_platform.audience.integration import open_services
from activity_platform.audience.worker import process_queues
from activity_platform.settings import Settings
with open_services(Settings.load(os.environ), log=logging.getLogger()) as services:
    for result in process_queues(services):
        print(result.status, flush=True)
"""


@pytest.fixture
def worker(environment: dict[str, str], retry_seconds: str) -> Callable[[], subprocess.Popen[bytes]]:
    """Starts a worker as a process of its own."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={"PATH": "/usr/bin:/bin", "AUDIENCE_RETRY_SECONDS": retry_seconds} | environment,
            stdout=subprocess.PIPE,
        )

    return start


Start = Callable[[], "subprocess.Popen[bytes]"]


def kill_when(worker: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """kill -9 as soon as the condition holds."""
    deadline = time.monotonic() + 120
    while not condition():
        assert worker.poll() is None, "the worker ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    worker.kill()
    worker.communicate()


def no_patience(world: World) -> None:
    """A killed worker's last heartbeat is as good as old."""
    world.connection.execute("UPDATE message_attempt SET heartbeat_at = heartbeat_at - interval '1 hour'")


def killed_in_the_chunks(world: World, start: Start, users: int) -> None:
    ids = user_ids(users)
    old, new = ids[: users // 2], ids[users // 2 - 100 :]
    audience = world.add_audience()
    world.add_users(ids, fresh=True)
    world.connection.execute(
        "UPDATE line_user SET audience_ids = ARRAY[%s]::bigint[] WHERE line_user_id = ANY(%s)",
        [audience, old],
    )
    came, left = world.add_rule(audience, "added"), world.add_rule(audience, "removed")
    world.connection.execute("ANALYZE line_user")
    world.update(audience, new)
    before = set(old)
    kill_when(start(), lambda: set(world.members(audience)) not in (before, set(new)))
    plan = world.count("audience_change")
    assert plan == (users // 2 - 100) + users // 2
    assert world.count("trigger_firing") == 0
    no_patience(world)
    # The stored plan is what counts, not what the file or LINE would say now.
    world.connection.execute("UPDATE line_user SET profile_fetched_at = NULL")
    (result,) = world.process()
    assert (result.status, result.attempts) == ("done", 2)
    assert (result.stats["added"], result.stats["removed"]) == (users // 2, users // 2 - 100)
    world.assert_consistent(audience, new)
    fired = world.firings()
    assert len(fired) == len(set(fired)) == plan
    assert {user for rule, user, _ in fired if rule == came} == set(new) - before
    assert {user for rule, user, _ in fired if rule == left} == before - set(new)


def test_a_worker_killed_between_chunks_is_resumed(world: World, worker: Start) -> None:
    killed_in_the_chunks(world, worker, 30_000)


@pytest.mark.heavy
def test_a_worker_killed_between_chunks_of_200_000_users_is_resumed(world: World, worker: Start) -> None:
    killed_in_the_chunks(world, worker, 200_000)


def killed_among_profiles(world: World, line: SimulatedLine, start: Start, users: int) -> None:
    ids = user_ids(users)
    audience = world.add_audience()
    world.create(audience, ids)
    kill_when(start(), lambda: world.count("line_user") > users // 3)
    known = world.count("line_user")
    asked = line.log()["requests"]
    assert known < users
    line.reset()
    no_patience(world)
    (result,) = world.process()
    assert (result.status, result.attempts) == ("done", 2)
    world.assert_consistent(audience, ids)
    assert line.log()["requests"] == users - known
    assert asked - known <= 1_000


def test_a_worker_killed_among_profiles_asks_only_for_the_rest(
    world: World, line: SimulatedLine, worker: Start
) -> None:
    killed_among_profiles(world, line, worker, 3_000)


@pytest.mark.heavy
def test_a_worker_killed_among_20_000_profiles_asks_only_for_the_rest(
    world: World, line: SimulatedLine, worker: Start
) -> None:
    killed_among_profiles(world, line, worker, 20_000)


SUICIDE = """
import dataclasses, logging, os, signal, sys
from activity_platform.audience import firings
from activity_platform.audience.integration import open_services
from activity_platform.audience.worker import process_queues
from activity_platform.settings import Settings
class Stream:
    depth = staticmethod(lambda queue: 0)
    def publish_many(self, queue, payloads):
        if sys.argv[1] == "sent":
            services.queues.publish_many(queue, payloads)
        os.kill(os.getpid(), signal.SIGKILL)
def publish(connection, *, now):
    firings.publish_firings(connection, now=now, stream=Stream())
with open_services(Settings.load(os.environ), log=logging.getLogger()) as services:
    list(process_queues(dataclasses.replace(services, publish_firings=publish)))
"""


def killed_before_it_was_marked(world: World, environment: dict[str, str], times: int) -> None:
    """Each time a worker dies between the commit of its firings and their mark; every other time after it
    sent them."""
    audience = world.add_audience()
    rule = world.add_rule(audience, "added")
    ids = user_ids(3 * times)
    world.add_users(ids, fresh=True)
    for number in range(times):
        world.mookept(audience, ids[3 * number : 3 * number + 3], "add")
        worker = subprocess.run(
            [sys.executable, "-c", SUICIDE, "sent" if number % 2 else "unsent"],
            env={"PATH": "/usr/bin:/bin"} | environment,
            check=False,
        )
        assert worker.returncode == -signal.SIGKILL
    assert world.process() == []  # the entries were taken off before
    firings.publish_firings(world.connection, now=datetime.now(UTC), stream=world.services.queues)
    assert sorted(world.firings()) == [(rule, one, "added") for one in ids]
    sent = [json.loads(entry.payload) for entry in world.services.queues.peek(firings.STREAM).entries]
    assert sorted({(one["firingId"], one["lineUserId"]) for one in sent}) == list(enumerate(ids, start=1))
    assert len(sent) > len(ids)
    world.assert_consistent(audience, ids)


def test_what_fired_is_sent_though_its_worker_is_killed(world: World, environment: dict[str, str]) -> None:
    killed_before_it_was_marked(world, environment, 2)


@pytest.mark.heavy
def test_what_fired_is_sent_though_its_worker_is_killed_twenty_times(
    world: World, environment: dict[str, str]
) -> None:
    killed_before_it_was_marked(world, environment, 20)


class Killed(BaseException):
    """What a kill looks like from inside: nothing is cleaned up that needs to be written down."""


def kill_in(world: World, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(module, name, killed)
        world.process()
        pytest.fail("nobody was killed")
    no_patience(world)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (imports, "start_import"),
        (imports, "add_stats"),
        (users, "stage_ids"),
        (membership, "make_plan"),
        (membership, "apply_plan"),
        (process, "_write_members"),
        (membership, "finish"),
        (imports, "record_success"),
        (process, "result_of"),
    ],
)
@pytest.mark.parametrize("command", ["update", "add", "remove", "delete"])
def test_wherever_it_is_killed_the_next_attempt_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch, module: object, name: str, command: str
) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B])
    world.process()
    came, left = world.add_rule(audience, "added"), world.add_rule(audience, "removed")
    if command == "update":
        world.update(audience, [B, C])
    elif command == "delete":
        world.delete(audience)
    else:
        world.mookept(audience, [B, C], command)
    expected = {"update": [B, C], "add": [A, B, C], "remove": [A], "delete": []}[command]
    fires = {
        "update": [(came, C, "added"), (left, A, "removed")],
        "add": [(came, C, "added")],
        "remove": [(left, B, "removed")],
        "delete": [(left, A, "removed"), (left, B, "removed")],
    }[command]
    kill_in(world, monkeypatch, module, name)
    world.process()
    world.assert_consistent(audience, expected)
    assert sorted(world.firings()) == sorted(fires)
    assert world.count("processed_message") == 2
    assert [row["status"] for row in world.imports(audience)] == ["done", "done"]
    assert world.services.queues.depth(world.imports(audience)[-1]["queue"]) == 0


def half_applied(world: World, audience: int, file: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is killed after its first chunk, of two users."""
    apply_plan = membership.apply_plan

    def some(*arguments: object, **more: object) -> Iterator[int]:
        yield next(apply_plan(*arguments, **more))  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(membership, "CHUNK_ROWS", 2)
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(membership, "apply_plan", some)
        world.update(audience, file)
        world.process()
    no_patience(world)


@pytest.mark.parametrize("retry_seconds", ["0"])
def test_a_command_that_is_killed_for_good_leaves_the_membership_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B])
    world.process()
    world.add_rule(audience, "added")
    half_applied(world, audience, [B, C, D], monkeypatch)
    assert world.members(audience) not in ([A, B], [B, C, D])
    with contextlib.suppress(Killed):
        monkeypatch.setattr(process, "_write_members", lambda *_: (_ for _ in ()).throw(Killed))
        world.process()
    no_patience(world)
    (result,) = world.process()
    assert (result.status, result.reason, result.attempts) == ("failed", "internal_error", 2)
    world.assert_consistent(audience, [A, B])
    assert world.firings() == []
    (letter,) = world.dead("update_audience")
    assert (letter.reason, letter.attempts) == ("internal_error", 2)
    assert world.imports(audience)[-1]["status"] == "failed"


def test_a_plan_whose_message_vanished_is_undone_before_the_next_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B])
    world.process()
    rule = world.add_rule(audience, "added")
    half_applied(world, audience, [B, C, D], monkeypatch)
    world.services.queues.client.delete("update_audience")
    world.mookept(audience, [C], "add")
    world.process()
    world.assert_consistent(audience, [A, B, C])
    assert world.firings() == [(rule, C, "added")]
    assert [(row["command"], row["status"], row["reason"]) for row in world.imports(audience)] == [
        *(("create", "done", None), ("update", "failed", "internal_error")),
        ("mookept_add", "done", None),
    ]


def test_an_audience_deleted_under_a_running_command_is_left_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B])
    world.process()
    before = world.info(audience)
    world.update(audience, [B, C])
    write_members = process._write_members

    def deleted_meanwhile(*arguments: object) -> int:
        world.connection.execute("UPDATE audience SET deleted_at = now() WHERE id = %s", [audience])
        return write_members(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "_write_members", deleted_meanwhile)
    (result,) = world.process()
    assert (result.status, result.reason) == ("skipped", "audience_deleted")
    assert world.members(audience) == [A, B]
    assert world.info(audience) == before
    assert world.count("audience_change") == 0


def test_a_busy_audience_costs_no_attempt(world: World) -> None:
    audience, other = world.add_audience(), world.add_audience()
    entry = world.create(audience, [A])
    world.create(other, [B])
    with world.services.connect() as elsewhere, audience_lock(elsewhere, audience):
        with (
            world.services.connect() as here,
            pytest.raises(AudienceBusy),
            audience_lock(here, audience, sleep=lambda _: None),
        ):
            pass
        with world.services.connect() as here, audience_lock(here, other):
            pass
    assert world.count("message_attempt") == 0
    assert isinstance(process.load(world.services, "create_audience", entry), ImportRef)


def test_a_message_that_a_worker_is_at_is_left_to_it_between_its_steps_too(world: World) -> None:
    entry = world.create(world.add_audience(), [A])
    assert isinstance(process.load(world.services, "create_audience", entry), ImportRef)
    with pytest.raises(AudienceBusy):
        process.load(world.services, "create_audience", entry)
    assert world.connection.execute("SELECT attempts FROM message_attempt").fetchall() == [(1,)]


def test_s18_two_workers_at_once_do_everything_once_and_in_order(
    world: World, settings: Settings, retry_seconds: str
) -> None:
    audiences = [world.add_audience() for _ in range(3)]
    for audience in audiences:
        world.add_rule(audience, "added")
        world.create(audience, [A, B])
        world.create(audience, [A, B])
        world.update(audience, [B, C])
        world.mookept(audience, [A], "add")

    def work() -> list[MessageResult]:
        with open_services(settings, log=LOG, policy=HASTY) as services:
            return list(process_queues(services))

    with ThreadPoolExecutor(2) as pool:
        results = [one for future in [pool.submit(work), pool.submit(work)] for one in future.result()]
    ended = [result for result in results if result.status == "done"]
    assert len({result.entry_id for result in ended}) == len(ended) == 12
    assert {result.attempts for result in ended} == {1}
    for audience in audiences:
        world.assert_consistent(audience, [A, B, C])
        assert [row["command"] for row in world.imports(audience)] == [
            *("create", "create", "update", "mookept_add")
        ]
    assert len(world.firings()) == 3 * 4


def test_a_message_id_that_was_another_command_s_is_refused(world: World) -> None:
    first, second = world.add_audience(), world.add_audience()
    world.send("create_audience", first, filePath="not/there.csv", message_id="same")
    world.process()
    world.connection.execute("DELETE FROM message_attempt")
    world.create(second, [A], message_id="same")
    (result,) = world.process()
    assert (result.status, result.reason) == ("failed", "bad_payload")
    assert world.members(second) == []
    assert [row["reason"] for row in world.imports(first)] == ["file_not_found"]


def test_the_lock_is_held_from_the_plan_to_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    audience = world.add_audience()
    world.create(audience, [A])
    held: list[bool] = []

    def watched(name: str) -> None:
        real = getattr(membership, name)

        def watch(*arguments: object, **more: object) -> object:
            with world.services.connect() as outside:
                ((free,),) = outside.execute(
                    "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [f"audience {audience}"]
                )
            held.append(not free)
            return real(*arguments, **more)

        monkeypatch.setattr(membership, name, watch)

    for name in ("make_plan", "apply_plan", "read_members", "finish"):
        watched(name)
    world.process()
    assert held == [True] * 4


def test_a_failure_behind_the_end_does_not_bury_what_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audience = world.add_audience()
    entry = world.create(audience, [A])
    ref = process.load(world.services, "create_audience", entry)
    assert isinstance(ref, ImportRef)
    for step in (process.read_file, process.fetch_profiles, process.change_membership):
        step(world.services, ref)
    error = RuntimeError("Redis went away before the entry was taken off")
    with pytest.raises(RuntimeError, match="went away"):
        endings.fail_step(world.services, ref, error)
    assert world.dead("create_audience") == []
    again = process.load(world.services, "create_audience", entry)
    assert isinstance(again, MessageResult)
    assert again.status == "repeated"
    assert world.services.queues.depth("create_audience") == 0
    world.assert_consistent(audience, [A])
