"""Activities on the queue become rows, by the sensor's run in the daemon."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import httpx
import psycopg
import pytest

from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues
from activity_platform.last_activity.messages import event_time
from activity_platform.local.programs import Programs
from activity_platform_tests.acceptance.conftest import until

PROBES_A_SECOND = 10
WAIT_SECONDS = 180  # a machine that is busy with tests; alone it is some ten seconds
UNFINISHED = {"NOT_STARTED", "QUEUED", "STARTING", "STARTED", "CANCELING"}
RUNS = """
{ runsOrError(filter: {pipelineName: "line_user_last_activity_job"}, limit: 100) {
    ... on Runs { results { runId status creationTime } } } }
"""
LOGS = """
{ logsForRun(runId: "%s") { ... on EventConnection { events { ... on EngineEvent {
    metadataEntries { label ... on TextMetadataEntry { text } } } } } } }
"""
NUMBERS = """
{ assetOrError(assetKey: {path: ["line_user_last_activity"]}) { ... on Asset {
    assetMaterializations(limit: 1) {
      metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } }
    } } } }
"""

#: LINE user id → type and date of the last activity.
Rows: TypeAlias = dict[str, tuple[str, datetime]]


@dataclass
class Traffic:
    """Users of an OA of the test's own, and messages of them."""

    platform: Programs
    connection: psycopg.Connection
    queues: Queues
    oa: int

    def add_users(self, count: int) -> list[str]:
        found = self.connection.execute(
            """INSERT INTO line_user (organization_id, line_oa_id, line_user_id)
               SELECT 1, %s, 'U' || replace(gen_random_uuid()::text, '-', '') FROM generate_series(1, %s)
               RETURNING line_user_id""",
            [self.oa, count],
        ).fetchall()
        return [line_user_id for (line_user_id,) in found]

    def send(self, users: Sequence[str]) -> Rows:
        """Queues a message of each; returns what the rows have to be once all are done."""
        expected: Rows = {}
        with self.queues.client.pipeline(transaction=False) as pipeline:
            for number, user in enumerate(users):
                pipeline.xadd(LAST_ACTIVITY, {"payload": self.payload(user, f"type {number}")})
            entry_ids: list[Any] = pipeline.execute()
        for number, (user, entry_id) in enumerate(zip(users, entry_ids, strict=True)):
            expected[user] = (f"type {number}", event_time(entry_id.decode()))
        return expected

    def payload(self, user: str, type_: str = "message") -> str:
        return json.dumps(
            {
                "lineUserId": user,
                "lineOaId": self.oa,
                "organizationId": 1,
                "activityType": type_,
                "activityStatus": "active",
            }
        )

    def rows(self) -> Rows:
        found = self.connection.execute(
            """SELECT line_user_id, last_activity_type, last_activity_date FROM line_user
               WHERE line_oa_id = %s AND last_activity_date IS NOT NULL""",
            [self.oa],
        )
        return {user: (type_, date) for user, type_, date in found}

    def is_done(self) -> bool:
        return self.queues.depth(LAST_ACTIVITY) == 0

    def check(self, expected: Rows) -> None:
        assert self.rows() == expected
        assert list(self.queues.dead(LAST_ACTIVITY)) == []

    def runs(self) -> list[dict[str, Any]]:
        """All runs of the job, newest first."""
        answer = httpx.post(f"{self.platform.ui_url}/graphql", json={"query": RUNS}, timeout=30).json()
        results: list[dict[str, Any]] = answer["data"]["runsOrError"]["results"]
        return results

    def wait_until_idle(self) -> None:
        """No run is under way: the next message needs a new one."""
        until(lambda: not UNFINISHED & {run["status"] for run in self.runs()}, WAIT_SECONDS)


class Watch:
    """Messages at a steady rate, and how long some of them, each of a user of its own, take to their row."""

    def __init__(self, traffic: Traffic, users: Sequence[str], probes: Sequence[str]) -> None:
        self._traffic = traffic
        self._users = users
        self._probes = list(probes)
        self._sent_at: dict[str, float] = {}

    def during(self, seconds: int, rate: int) -> list[float]:
        """The seconds from before a probe's XADD until its row is seen changed."""
        sender = threading.Thread(target=self._send, args=(seconds, rate))
        sender.start()
        latencies: list[float] = []
        while sender.is_alive() or self._sent_at:
            arrived = self._arrived()
            now = time.monotonic()
            latencies += [now - self._sent_at.pop(user) for user in arrived]
            time.sleep(0.02)
        return latencies

    def _send(self, seconds: int, rate: int) -> None:
        slices = seconds * PROBES_A_SECOND
        began = time.monotonic()
        for number in range(slices):
            time.sleep(max(0.0, began + number / PROBES_A_SECOND - time.monotonic()))
            probe = self._probes[number]
            self._sent_at[probe] = time.monotonic()
            others = random.choices(self._users, k=rate // PROBES_A_SECOND - 1)
            self._traffic.send([probe, *others])

    def _arrived(self) -> list[str]:
        found = self._traffic.connection.execute(
            """SELECT line_user_id FROM line_user
               WHERE line_oa_id = %s AND line_user_id = ANY(%s) AND last_activity_date IS NOT NULL""",
            [self._traffic.oa, list(self._sent_at)],
        )
        return [user for (user,) in found]


def kill_run(traffic: Traffic) -> None:
    """kill -9 of the process of the newest run."""
    query = LOGS % traffic.runs()[0]["runId"]
    answer = httpx.post(f"{traffic.platform.ui_url}/graphql", json={"query": query}, timeout=30).json()
    entries = [
        entry
        for event in answer["data"]["logsForRun"]["events"]
        for entry in event.get("metadataEntries", ())
        if entry["label"] == "pid"
    ]
    os.kill(int(entries[-1]["text"]), signal.SIGKILL)


@pytest.fixture
def traffic(platform: Programs, request: pytest.FixtureRequest) -> Iterator[Traffic]:
    client = queue_module.connect(platform.environment["REDIS_URL"])
    oa = 700_000 + sum(map(ord, request.node.name))
    with psycopg.connect(platform.environment["DATABASE_URL"], autocommit=True) as connection:
        yield Traffic(platform, connection, Queues(client), oa)
    client.close()


def test_messages_on_the_queue_become_rows(traffic: Traffic) -> None:
    users = traffic.add_users(2_500)
    before = len(traffic.runs())
    expected = traffic.send(random.Random(1).choices(users, k=5_000))
    until(traffic.is_done, WAIT_SECONDS)
    traffic.check(expected)
    assert len(traffic.runs()) - before <= 3


def test_a_message_that_follows_joins_the_run_that_is_there(traffic: Traffic) -> None:
    (user,) = traffic.add_users(1)
    traffic.send([user])
    until(traffic.is_done, WAIT_SECONDS)
    before = len(traffic.runs())
    expected = traffic.send([user])
    sent = time.monotonic()
    until(traffic.is_done, WAIT_SECONDS, every=0.02)
    took = time.monotonic() - sent
    traffic.check(expected)
    if len(traffic.runs()) == before:  # else it came just as the run ended
        assert took < 5


@pytest.mark.heavy
def test_a_hundred_thousand_messages_become_rows_in_few_runs(traffic: Traffic) -> None:
    users = traffic.add_users(50_000)
    traffic.wait_until_idle()
    before = len(traffic.runs())
    chosen = [*users, *random.Random(2).choices(users, k=50_000)]
    random.Random(3).shuffle(chosen)
    expected: Rows = {}
    for first in range(0, len(chosen), 5_000):
        expected |= traffic.send(chosen[first : first + 5_000])
    until(traffic.is_done, WAIT_SECONDS)
    traffic.check(expected)
    assert len(expected) == 50_000
    assert len(traffic.runs()) - before <= 3
    traffic.wait_until_idle()
    answer = httpx.post(f"{traffic.platform.ui_url}/graphql", json={"query": NUMBERS}, timeout=30).json()
    (shown,) = answer["data"]["assetOrError"]["assetMaterializations"]
    numbers = {
        entry["label"]: entry.get("intValue", entry.get("floatValue")) for entry in shown["metadataEntries"]
    }
    assert numbers["read"] > 0
    assert numbers["messages_per_second"] > 0


@pytest.mark.heavy
def test_under_steady_traffic_rows_follow_within_a_second_and_a_half(traffic: Traffic) -> None:
    """1,000 messages a second for two minutes: p95 from XADD to the committed row, once the run is up."""
    seconds, rate = 120, 1_000
    users = traffic.add_users(5_000)
    probes = traffic.add_users(seconds * PROBES_A_SECOND)
    traffic.wait_until_idle()
    before = len(traffic.runs())
    traffic.send(users[:1])
    until(traffic.is_done, WAIT_SECONDS)  # the run is up
    latencies = Watch(traffic, users, probes).during(seconds, rate)
    assert len(latencies) == len(probes)
    p95 = sorted(latencies)[int(len(latencies) * 0.95)]
    assert p95 <= 1.5
    assert len(traffic.runs()) - before < 10


@pytest.mark.heavy
def test_a_run_that_is_killed_is_followed_by_another(traffic: Traffic) -> None:
    users = traffic.add_users(20_000)
    expected: Rows = {}
    for _ in range(3):
        expected |= traffic.send(users)
        until(lambda: traffic.queues.depth(LAST_ACTIVITY) < 19_000, WAIT_SECONDS, every=0.01)
        kill_run(traffic)
    until(traffic.is_done, WAIT_SECONDS)
    traffic.check(expected)
