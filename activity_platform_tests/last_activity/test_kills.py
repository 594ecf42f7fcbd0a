"""kill -9 while draining: of the run, of Valkey, of PostgreSQL. The rows are right and nothing is stuck."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from activity_platform import migrations
from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues
from activity_platform.last_activity.messages import event_time
from activity_platform.local import embedded_postgres, embedded_valkey
from activity_platform.local.server import Server
from activity_platform_tests.last_activity.conftest import line_user_id, payload

PASSWORD = "only-for-this-test"
PEOPLE = 2_000
Victim = Literal["run", "valkey", "postgres"]


@dataclass
class Site:
    """PostgreSQL and Valkey of the test's own, a run to kill, and what the rows have to be in the end."""

    postgres: Server
    valkey: Server
    chance: random.Random = field(default_factory=lambda: random.Random(9))
    expected: dict[str, tuple[str, datetime]] = field(default_factory=dict)

    @property
    def database_url(self) -> str:
        return embedded_postgres.url(self.postgres.port, PASSWORD, "postgres")

    @property
    def redis_url(self) -> str:
        return embedded_valkey.url(self.valkey.port, PASSWORD)

    def queues(self) -> Queues:
        return Queues(queue_module.connect(self.redis_url))

    def publish(self, count: int) -> None:
        """Queues so many messages of random people, and remembers each that Valkey has taken."""
        with self.queues().client.pipeline(transaction=False) as pipeline:
            sent = []
            for number in range(count):
                user, type_ = line_user_id(self.chance.randrange(PEOPLE)), f"type {number}"
                pipeline.xadd(LAST_ACTIVITY, {"payload": json.dumps(payload(user, type_))})
                sent.append((user, type_))
            entry_ids: list[Any] = pipeline.execute()
        for (user, type_), entry_id in zip(sent, entry_ids, strict=True):
            self.expected[user] = (type_, event_time(entry_id.decode()))

    def start_run(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("activity-platform")), "last-activity", "drain"],
            env={
                "DATABASE_URL": self.database_url,
                "REDIS_URL": self.redis_url,
                "XDG_STATE_HOME": "/nonexistent",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_while_draining(self, victim: Victim) -> None:
        """Kills it once some messages are done and others are not; ends when the run has ended."""
        waiting = self.queues().depth(LAST_ACTIVITY)
        run = self.start_run()
        wait_until(lambda: self.queues().depth(LAST_ACTIVITY) < waiting)
        if victim == "run":
            run.kill()
            run.communicate()
            assert self.queues().depth(LAST_ACTIVITY) > 0
            return
        server = {"valkey": self.valkey, "postgres": self.postgres}[victim]
        server.kill()
        _, said = run.communicate(timeout=60)
        assert run.returncode == 1
        assert said.strip().splitlines()[-1].count("Redis" if victim == "valkey" else "PostgreSQL") >= 1
        server.start()

    def drain(self) -> dict[str, Any]:
        run = self.start_run()
        said, complaints = run.communicate(timeout=120)
        assert run.returncode == 0, complaints
        counts: dict[str, Any] = json.loads(said)
        return counts

    def check(self) -> None:
        assert self.queues().depth(LAST_ACTIVITY) == 0
        assert list(self.queues().dead(LAST_ACTIVITY)) == []
        with psycopg.connect(self.database_url) as connection:
            found = connection.execute(
                """SELECT line_user_id, last_activity_type, last_activity_date FROM line_user
                   WHERE last_activity_date IS NOT NULL"""
            ).fetchall()
        assert {user: (type_, date) for user, type_, date in found} == self.expected


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    run = tmp_path / "run"
    run.mkdir()
    postgres = embedded_postgres.server(tmp_path / "postgres", run, PASSWORD)
    valkey = embedded_valkey.server(tmp_path / "valkey", run, PASSWORD, settings={"appendfsync": "always"})
    try:
        postgres.start()
        valkey.start()
        site = Site(postgres, valkey)
        migrations.upgrade(site.database_url)
        with psycopg.connect(site.database_url) as connection:
            connection.execute(
                """INSERT INTO line_user (organization_id, line_oa_id, line_user_id)
                   SELECT 1, 1, 'U' || lpad(to_hex(n), 32, '0') FROM generate_series(0, %s - 1) n""",
                [PEOPLE],
            )
        yield site
    finally:
        valkey.stop()
        postgres.stop()


def test_after_a_kill_of_run_valkey_and_postgres_the_rows_are_right(site: Site) -> None:
    for victim in ("run", "valkey", "postgres"):
        site.publish(4_000)
        site.kill_while_draining(victim)
    site.drain()
    site.check()


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["run", "valkey", "postgres"])
def test_after_ten_kills_the_rows_are_right(site: Site, victim: Victim) -> None:
    for _ in range(10):
        site.publish(8_000)
        site.kill_while_draining(victim)
    site.drain()
    site.check()
