"""A LINE user, or a whole account, is forgotten; everybody else's rows, files and messages stay."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count, takewhile
from typing import Any

import psycopg
import pytest
import redis

from activity_platform import erasure_requests
from activity_platform.audience import erasure, erasure_oa, process
from activity_platform.audience.services import ImportRef
from activity_platform.audience.worker import process_queues
from activity_platform.failures import PermanentFailure, TransientFailure, UsageError
from activity_platform.gateways.object_store import ObjectMissing, ObjectStore, StorageUnavailable
from activity_platform.gateways.queue import Burial
from activity_platform.last_activity.drain import drain
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World, world_of
from activity_platform_tests.simulated_line import SimulatedLine, user_id, user_ids
from activity_platform_tests.traces import keys_with, objects_with, rows_with

GONE = user_id(0xABC)
OTHERS = user_ids(5)


def erase(settings: Settings, world: World, line_user_id: str = GONE) -> erasure.LineErasure:
    request = erasure.request_line_user(world.connection, world.line_oa_id, line_user_id)
    return erasure.erase_line_user(settings, request, patience_seconds=5)


def assert_no_trace(settings: Settings, world: World, text: str = GONE, *, under: str | None = None) -> None:
    assert rows_with(world.connection, text) == {}
    assert objects_with(settings, text, f"private/{world.hash}/" if under is None else under) == []
    assert keys_with(settings.redis_url, text) == []


def activity_of(world: World, line_user_id: str, **more: object) -> str:
    return json.dumps(
        {
            "lineUserId": line_user_id,
            "lineOaId": world.line_oa_id,
            "organizationId": world.organization_id,
            "activityType": "message",
            "activityStatus": "active",
        }
        | more
    )


def bury(world: World, queue: str, payload: str) -> None:
    entry = world.services.queues.get(queue, world.services.queues.publish(queue, payload))
    assert entry is not None
    world.services.queues.bury([Burial(entry, "bad_payload", "no")], now=datetime.now(UTC))


@pytest.fixture
def audiences(world: World, line: SimulatedLine) -> list[int]:
    """Two audiences with the user, one of them with a history, a rule and a file of rejects; one without."""
    ids = [world.add_audience() for _ in range(3)]
    world.add_users([GONE, *OTHERS], fresh=True)
    world.add_rule(ids[0], "added")
    world.create(ids[0], [GONE, *OTHERS[:3], "U12"])
    world.update(ids[0], [*OTHERS, f"{GONE}9"])  # the user as part of a malformed entry of the rejects
    world.mookept(ids[0], gzip.compress(f"{GONE}\n".encode()), "add")
    world.create(ids[1], [GONE])
    world.create(ids[2], OTHERS)
    assert {result.status for result in world.process()} == {"done"}
    return ids


def test_a_user_leaves_rows_files_streams_and_copies(
    settings: Settings, world: World, audiences: list[int]
) -> None:
    queues, client = world.services.queues, world.services.queues.client
    world.add_users([user_id(0xDEF)])
    queues.publish("line_user_last_activity", activity_of(world, GONE))
    kept = queues.publish("line_user_last_activity", activity_of(world, OTHERS[0]))
    bury(world, "line_user_last_activity", activity_of(world, GONE, activityStatus="odd"))
    bury(world, "line_user_last_activity", '{"lineUserId": "' + GONE)
    client.set(f"LINE_USER:{GONE}", json.dumps({"lineUserId": GONE}))
    client.set(f"line_missing:{world.line_oa_id}:{GONE}", 1)
    assert rows_with(world.connection, GONE).keys() == {"line_user", "line_user_engagement"}
    assert len(objects_with(settings, GONE, f"private/{world.hash}/")) == 8
    firings = world.count("trigger_firing")
    found = erasure.preview_line_user(settings, world.line_oa_id, GONE)
    assert found == erasure.UserPreview(
        line_users=1, memberships=2, firings=2, entries=3, dead_letters=2, files=15
    )

    done = erase(settings, world)

    assert_no_trace(settings, world)
    world.assert_consistent(audiences[0], OTHERS)
    world.assert_consistent(audiences[1], [])
    world.assert_consistent(audiences[2], OTHERS)
    assert world.count("trigger_firing") == firings - 2
    assert queues.get("line_user_last_activity", kept)
    assert done.uploads_left == 0
    assert done.erasure.status == "done"
    assert dict(done.erasure.counts) == {
        "line_users": 1, "firings": 2, "entries": 3, "dead_letters": 2, "result_files": 4, "uploads": 4,
    }  # fmt: skip


def test_an_erasure_that_is_cut_off_anywhere_is_finished_by_the_next(
    settings: Settings, world: World, audiences: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one comes a step further: a file is written, or its number told."""
    put, tell = ObjectStore.put, erasure._Eraser._tell_members
    left = [0]

    def step(work: Callable[..., None]) -> Callable[..., None]:
        def cut_off(*args: Any, **more: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StorageUnavailable("the object storage is away")
            work(*args, **more)

        return cut_off

    monkeypatch.setattr(ObjectStore, "put", step(put))
    monkeypatch.setattr(erasure._Eraser, "_tell_members", step(tell))
    ended = 0
    for steps in range(1, 20):
        left[0] = steps % 3  # whatever is done before is not done again
        with suppress(StorageUnavailable):
            erase(settings, world)
            ended = steps
            break
    assert ended > 3
    assert_no_trace(settings, world)
    world.assert_consistent(audiences[0], OTHERS)
    world.assert_consistent(audiences[1], [])


@pytest.mark.parametrize("after", range(3))
def test_a_running_import_is_waited_for_and_brings_nobody_back(
    settings: Settings, world: World, line: SimulatedLine, after: int
) -> None:
    audience = world.add_audience()
    entry_id = world.create(audience, [GONE, *OTHERS])
    ref = process.load(world.services, "create_audience", entry_id)
    assert isinstance(ref, ImportRef)
    steps: list[Callable[[], object]] = [
        lambda: process.read_file(world.services, ref),
        lambda: process.fetch_profiles(world.services, ref),
        lambda: process.change_membership(world.services, ref),
    ]
    for step in steps[:after]:
        step()
    done: list[erasure.LineErasure] = []
    thread = threading.Thread(target=lambda: done.append(erase(settings, world)))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    for step in steps[after:]:
        step()
    process.publish(world.services, ref)
    thread.join()

    assert done
    assert_no_trace(settings, world)
    world.assert_consistent(audience, OTHERS)


def test_an_import_that_does_not_end_leaves_the_request_pending(
    settings: Settings, world: World, line: SimulatedLine
) -> None:
    entry_id = world.create(world.add_audience(), [GONE])
    assert isinstance(process.load(world.services, "create_audience", entry_id), ImportRef)
    request = erasure.request_line_user(world.connection, world.line_oa_id, GONE)
    with pytest.raises(TransientFailure, match="erase_job"):
        erasure.erase_line_user(settings, request, patience_seconds=0.1)
    assert [one.id for one in erasure_requests.pending(world.connection)] == [request.id]


def test_a_message_that_waits_finds_its_file_without_the_user(
    settings: Settings, world: World, line: SimulatedLine
) -> None:
    audience = world.add_audience()
    world.create(audience, [GONE, *OTHERS])
    erase(settings, world)
    world.process()
    assert_no_trace(settings, world)
    world.assert_consistent(audience, OTHERS)


def test_the_same_person_in_another_account_is_somebody_else(settings: Settings, world: World) -> None:
    world.add_users([GONE])
    other = world.add_oa("other-hash")
    world.connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id) VALUES (5, %s, %s)", [other, GONE]
    )
    queues = world.services.queues
    kept = queues.publish("line_user_last_activity", activity_of(world, GONE, lineOaId=str(other)))
    erase(settings, world)
    assert queues.get("line_user_last_activity", kept)
    assert world.connection.execute(
        "SELECT line_oa_id FROM line_user WHERE line_user_id = %s", [GONE]
    ).fetchall() == [(other,)]


def test_a_file_in_another_bucket_is_counted_and_left(
    settings: Settings, world: World, line: SimulatedLine
) -> None:
    world.store._client.create_bucket(Bucket="theirs")
    world.store.put("s3://theirs/list.csv", GONE.encode(), content_type="text/csv")
    world.send("create_audience", world.add_audience(), filePath="s3://theirs/list.csv")
    world.process()
    assert erase(settings, world).uploads_left == 1
    assert world.store.get("s3://theirs/list.csv", most_bytes=100) == GONE.encode()


def test_drains_bring_nobody_back(settings: Settings, world: World) -> None:
    world.add_users([GONE])
    erase(settings, world)
    world.services.queues.publish("line_user_last_activity", activity_of(world, GONE))
    drained = drain(settings.database_url, world.services.queues)
    assert drained.unknown == 1
    assert_no_trace(settings, world)


def test_an_account_that_is_not_there_is_named(settings: Settings, world: World) -> None:
    with pytest.raises(UsageError, match=r"no official account 999: .*oa list"):
        erasure.request_line_user(world.connection, 999, GONE)
    with pytest.raises(UsageError, match="no official account 999"):
        erasure_oa.request_oa(world.connection, 999)


def tables_with(connection: psycopg.Connection, line_oa_id: int) -> dict[str, int]:
    """Rows of the account in the tables that name one."""
    found = {}
    for table in ("line_user", "audience", "trigger_rule"):
        statement = psycopg.sql.SQL("SELECT count(*) FROM {} WHERE line_oa_id = %s")
        ((found[table],),) = connection.execute(statement.format(psycopg.sql.Identifier(table)), [line_oa_id])
    ((found["line_oa"],),) = connection.execute("SELECT count(*) FROM line_oa WHERE id = %s", [line_oa_id])
    return found


def test_a_whole_account_goes_and_the_next_one_stays(
    settings: Settings, world: World, audiences: list[int], line: SimulatedLine
) -> None:
    client: redis.Redis = world.services.queues.client
    other = world.add_oa("other-hash")
    world.connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id) VALUES (5, %s, %s)", [other, GONE]
    )
    queues = world.services.queues
    queues.publish("line_user_last_activity", activity_of(world, GONE))
    kept = queues.publish("line_user_last_activity", activity_of(world, GONE, lineOaId=other))
    world.update(audiences[0], OTHERS)
    bury(world, "update_audience", activity_of(world, GONE))
    client.set(f"LINE_USER:{OTHERS[0]}", "{}")
    client.set(f"line_missing:{world.line_oa_id}:{GONE}", 1)
    client.set(f"line_missing:{other}:{GONE}", 1)
    found = erasure_oa.preview_oa(settings, world.line_oa_id)
    assert (found.line_users, found.audiences, found.dead_letters) == (6, 3, 1)
    request = erasure_oa.request_oa(world.connection, world.line_oa_id)

    done = erasure_oa.erase_oa(settings, request)

    assert tables_with(world.connection, world.line_oa_id) == dict.fromkeys(
        ("line_user", "audience", "trigger_rule", "line_oa"), 0
    )
    for table in (
        "audience_import",
        "audience_change",
        "trigger_firing",
        "message_attempt",
        "processed_message",
    ):
        assert world.count(table) == 0
    assert tables_with(world.connection, other)["line_user"] == 1
    assert objects_with(settings, world.hash, f"private/{world.hash}/") == []
    assert rows_with(world.connection, world.hash) == {}
    assert queues.get("line_user_last_activity", kept)
    assert {key for key in keys_with(settings.redis_url, "U0") if "line" in key} >= {
        f"line_missing:{other}:{GONE}"
    }
    assert not client.exists(f"LINE_USER:{OTHERS[0]}", f"line_missing:{world.line_oa_id}:{GONE}")
    counts = dict(done.erasure.counts)
    assert (counts["accounts"], counts["audiences"], counts["line_users"], counts["imports"]) == (1, 3, 6, 5)
    assert (counts["rules"], counts["dead_letters"], counts["uploads"]) == (1, 1, 6)
    assert done.uploads_left == 0


def test_an_account_that_is_half_gone_is_finished(
    settings: Settings, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_users([GONE], fresh=True)
    world.create(world.add_audience(), [GONE])
    world.process()

    def die(*_: object) -> None:
        raise PermanentFailure("killed")

    request = erasure_oa.request_oa(world.connection, world.line_oa_id)
    with monkeypatch.context() as patch:
        patch.setattr(erasure_oa._Eraser, "erase_users", die)
        with pytest.raises(PermanentFailure):
            erasure_oa.erase_oa(settings, request)
    world.store.put(f"private/{world.hash}/audience/audience-1-2.csv", b"", content_type="text/csv")
    erasure_oa.erase_oa(settings, erasure_oa.request_oa(world.connection, world.line_oa_id))
    assert objects_with(settings, world.hash, f"private/{world.hash}/audience/") == []
    assert world.count("line_user") == 0
    with pytest.raises(ObjectMissing):
        world.store.get(f"private/{world.hash}/audience/audience-1-2.csv", most_bytes=10)


ERASE = """
import os, sys
from activity_platform.audience import erasure
from activity_platform.gateways import postgres
from activity_platform.settings import Settings
settings = Settings.load(os.environ)
with postgres.connect(settings.database_url, application_name="test") as connection:
    request = erasure.request_line_user(connection, int(sys.argv[1]), sys.argv[2])
print("begins", flush=True)
erasure.erase_line_user(settings, request)
"""


@pytest.mark.heavy
def test_an_erasure_that_is_killed_again_and_again_beside_imports_is_finished_in_the_end(
    settings: Settings, environment: dict[str, str], world: World, line: SimulatedLine
) -> None:
    """Imports name the user until the last erasure begins; commands of three audiences go on all the time."""
    audiences = [world.add_audience() for _ in range(3)]
    world.add_rule(audiences[0], "added")
    ending, silent = threading.Event(), threading.Event()

    def send() -> None:
        for number in takewhile(lambda _: not ending.is_set(), count()):
            ids = OTHERS if silent.is_set() else [GONE, *OTHERS]
            audience = audiences[number % 3]
            if number % 2:
                world.update(audience, ids)
            else:
                world.mookept(audience, ids[: number % 4 + 1], "add" if number % 4 else "remove")
            time.sleep(0.2)

    def work() -> None:
        with world_of(settings, world.connection) as own:
            while not ending.is_set() or any(status.depth for status in own.services.queues.status()):
                deque(process_queues(own.services), maxlen=0)
                time.sleep(0.05)

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(send), pool.submit(work)]
        try:
            for kill in range(15):
                process = subprocess.Popen(
                    [sys.executable, "-c", ERASE, str(world.line_oa_id), GONE],
                    env=os.environ | environment,
                    stdout=subprocess.PIPE,
                )
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(random.Random(kill).random())
                process.kill()
                process.communicate()
            silent.set()
            time.sleep(0.5)
            erase(settings, world)
        finally:
            ending.set()
        for one in working:
            one.result()
    assert_no_trace(settings, world)
    for audience in audiences:
        world.assert_consistent(audience, world.members(audience))
