"""Draining last activities, beside a Celery worker that updates one row a message from the same Valkey.

Both find their messages queued, of the same 50,000 users, and share the machine with PostgreSQL and Valkey.
Half of the users have a cached copy, which only the drain keeps up to date. Celery's start is not counted:
its rate is that of the messages after the first tenth.
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
from benchmarks.harness import Comparison, Options, Target, compare, stack

MESSAGES = 100_000
CELERY_MESSAGES = 5_000
USERS = 50_000
CELERY_SECONDS = 300
CELERY_QUEUE = "celery"
CELERY_PROCESSES = 2  # measured on two cores: more are not faster

DRAIN, CELERY = "drain", "Celery, a row a message"

ADD_USERS = """
    INSERT INTO line_user (organization_id, line_oa_id, line_user_id, display_name, picture_url)
    SELECT 1, 1, 'U' || md5(n::text), 'Somebody ' || n, 'https://profile.line-scdn.net/' || md5(n::text)
    FROM generate_series(1, %s) AS n
    RETURNING id, line_user_id
"""


def run(options: Options) -> Iterator[Comparison]:
    """Messages a second, drained and worked off by Celery."""
    with stack() as running:
        settings = Settings.load(running.environment)
        traffic = Traffic(settings, options)
        yield compare(
            "drain",
            f"messages of {options.size(USERS):,} users",
            "messages/s",
            {DRAIN: traffic.drained, CELERY: traffic.worked_off},
            options,
            [Target(DRAIN, CELERY, at_least=10)],
        )
        traffic.close()


class Traffic:
    """The users, and messages of random ones."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings = settings
        self._options = options
        self._chance = random.Random(5)
        self._client = queue_module.connect(settings.redis_url)
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            users = connection.execute(ADD_USERS, [options.size(USERS)]).fetchall()
            connection.execute("VACUUM ANALYZE line_user")
        self._people = [line_user_id for _, line_user_id in users]
        with self._client.pipeline(transaction=False) as pipeline:
            for row_id, line_user_id in users[::2]:
                copy = {"id": row_id, "lineOaId": 1, "organizationId": 1, "lineUserId": line_user_id}
                pipeline.set(f"LINE_USER:{line_user_id}", json.dumps(copy), ex=86_400)
            pipeline.execute()

    def close(self) -> None:
        self._client.close()

    def drained(self) -> float:
        count = self._options.size(MESSAGES)
        queues = Queues(self._client)
        queues.publish_many(LAST_ACTIVITY, (json.dumps(message) for message in self._messages(count)))
        result = drain(self._settings.database_url, queues)
        if result.updated != count:
            raise RuntimeError(f"{count} messages were queued, {result.updated} updated a row")
        return result.messages_per_second

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
                "lineOaId": 1,
                "organizationId": 1,
                "activityType": "message",
                "activityStatus": "active",
            }
