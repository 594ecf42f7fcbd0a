"""Draining last activities, beside a Celery worker that updates one row a message from the same Valkey.

Both find their messages queued, of the same 50,000 users, and share the machine with PostgreSQL and Valkey.
Half of the users have a cached copy, which only the drain keeps up to date. Celery's start is not counted:
its rate is that of the messages after the first tenth. The limit is the stream alone: reading its pages and
deleting them. The second case drains messages of another account, which has ten times the users.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg

from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues
from activity_platform.last_activity.drain import drain
from activity_platform.settings import Settings
from benchmarks._celery_worker import app, update_last_activity
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer, stack

MESSAGES = 50_000
CELERY_MESSAGES = 3_000
USERS = 50_000
TIMES = 10
PAGE = 1_000  # as the drain reads them
MESSAGES_A_SECOND = 15_000
CELERY_SECONDS = 300
CELERY_QUEUE = "celery"
CELERY_PROCESSES = 2  # measured on two cores: more are not faster

DRAIN, CELERY, STREAM = "drain", "Celery, a row a message", "reading and deleting pages"

ADD_USERS = """
    INSERT INTO line_user (organization_id, line_oa_id, line_user_id, display_name, picture_url)
    SELECT 1, %s, 'U' || md5(n::text), 'Somebody ' || n, 'https://profile.line-scdn.net/' || md5(n::text)
    FROM generate_series(%s::int, %s::int) AS n
    RETURNING id, line_user_id
"""


def run(options: Options) -> Iterator[Comparison]:
    """Messages a second: drained, worked off by Celery, only read; and drained among more users."""
    users = options.size(USERS)
    with stack() as running:
        settings = Settings.load(running.environment)
        few = Traffic(settings, options, line_oa_id=1, users=range(1, users + 1))
        yield compare(
            "drain",
            f"messages of {users:,} users",
            "messages/s",
            {DRAIN: few.drained, CELERY: few.worked_off, STREAM: few.only_read},
            options,
            [peer(CELERY, 10), limit(STREAM)],
            aim=MESSAGES_A_SECOND,
        )
        many = Traffic(settings, options, line_oa_id=2, users=range(users + 1, (TIMES + 1) * users + 1))
        less, more = f"drain, {users:,} users", f"drain, {TIMES * users:,} users"
        yield compare(
            "drain",
            f"{TIMES} times the users",
            "messages/s",
            {more: many.drained, less: few.drained},
            options,
            [base(less, FLAT)],
        )
        few.close()
        many.close()


class Traffic:
    """The users of one account, and messages of random ones."""

    def __init__(self, settings: Settings, options: Options, *, line_oa_id: int, users: range) -> None:
        self._settings = settings
        self._line_oa_id = line_oa_id
        self._options = options
        self._chance = random.Random(5)
        self._client = queue_module.connect(settings.redis_url)
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            rows = connection.execute(ADD_USERS, [line_oa_id, users[0], users[-1]]).fetchall()
            connection.execute("VACUUM ANALYZE line_user")
        self._people = [line_user_id for _, line_user_id in rows]
        with self._client.pipeline(transaction=False) as pipeline:
            for row_id, line_user_id in rows[::2]:
                copy = {"id": row_id, "lineOaId": line_oa_id, "organizationId": 1, "lineUserId": line_user_id}
                pipeline.set(f"LINE_USER:{line_user_id}", json.dumps(copy), ex=86_400)
            pipeline.execute()

    def close(self) -> None:
        self._client.close()

    def drained(self) -> float:
        count = self._queue()
        result = drain(self._settings.database_url, Queues(self._client))
        if result.updated != count:
            raise RuntimeError(f"{count} messages were queued, {result.updated} updated a row")
        return result.messages_per_second

    def only_read(self) -> float:
        count = self._queue()
        queues = Queues(self._client)
        started = time.perf_counter()
        while entries := queues.peek(LAST_ACTIVITY, count=PAGE).entries:
            queues.finish(LAST_ACTIVITY, [entry.entry_id for entry in entries])
        return count / (time.perf_counter() - started)

    def _queue(self) -> int:
        count = self._options.size(MESSAGES)
        messages = (json.dumps(message) for message in self._messages(count))
        Queues(self._client).publish_many(LAST_ACTIVITY, messages)
        return count

    def worked_off(self) -> float:
        count = self._options.size(CELERY_MESSAGES)
        app.conf.broker_url = self._settings.redis_url
        with app.connection_for_write() as connection:
            for message in self._messages(count):
                at = datetime.now(UTC).isoformat()
                update_last_activity.apply_async((message, at), connection=connection)
        with self._worker():
            return self._rate(count)

    @contextmanager
    def _worker(self) -> Iterator[None]:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "--app", "benchmarks._celery_worker", "worker"),
                *("--concurrency", str(CELERY_PROCESSES), "--loglevel", "error"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            env=os.environ
            | {
                "DATABASE_URL": self._settings.database_url,
                "CELERY_BROKER_URL": self._settings.redis_url,
                "PYTHONWARNINGS": "ignore",  # it warns of root
            },
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            worker.terminate()
            worker.wait()

    def _rate(self, count: int) -> float:
        """Tasks a second between the first tenth and the last."""
        self._wait_until_left(count * 9 // 10)
        started, left = time.monotonic(), self._left()
        self._wait_until_left(0)
        return left / (time.monotonic() - started)

    def _wait_until_left(self, at_most: int) -> None:
        deadline = time.monotonic() + CELERY_SECONDS
        while self._left() > at_most:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Celery left {self._left()} tasks undone")
            time.sleep(0.02)

    def _left(self) -> int:
        """Tasks that no process has begun: those on Celery's list, and those fetched ahead."""
        return int(self._client.llen(CELERY_QUEUE)) + int(self._client.hlen("unacked"))

    def _messages(self, count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            yield {
                "lineUserId": self._chance.choice(self._people),
                "lineOaId": self._line_oa_id,
                "organizationId": 1,
                "activityType": "message",
                "activityStatus": "active",
            }
