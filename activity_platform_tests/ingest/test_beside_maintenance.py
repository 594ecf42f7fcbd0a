"""Months are dropped while clients post: none of them waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from activity_platform.activity.partitions import MaintenanceResult, maintain
from activity_platform_tests.activity.log_rows import set_watermark
from activity_platform_tests.ingest.served import EVENTS, Served, body, event

CLIENTS = 4
#: Maintenance of that day makes its own month and the next; both ended more than thirty days ago.
LONG_AGO = timedelta(days=120)


@dataclass
class Posted:
    """What clients were answered, and after how many seconds."""

    statuses: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@contextmanager
def clients_posting(api: Served, user: str, *, a_second: int = 20) -> Iterator[Posted]:
    """Single events at a steady rate, on connections that are kept; yields the answers as they come."""
    stop = threading.Event()
    posted = Posted()
    headers = api.headers(user)

    def post() -> None:
        due = time.monotonic()
        with httpx.Client(base_url=api.url, headers=headers, timeout=90) as client:
            while not stop.wait(max(0.0, due - time.monotonic())):
                due += CLIENTS / a_second
                started = time.monotonic()
                response = client.post(EVENTS, content=body(event()))
                posted.seconds.append(time.monotonic() - started)
                posted.statuses.append(response.status_code)

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(post) for _ in range(CLIENTS)]
        try:
            yield posted
        finally:
            stop.set()
            for one in running:
                one.result()


def maintained(api: Served, now: datetime | None = None, patience_seconds: float = 0.0) -> MaintenanceResult:
    return maintain(
        api.settings.database_url, now=now, retention_days=30, ahead=1, patience_seconds=patience_seconds
    )


def drop_beside_a_reader(api: Served, user: str, *, seconds: float) -> None:
    """A reader holds the log for that long; one maintenance gives up meanwhile, one waits for its end."""
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        maintained(api, datetime.now(UTC) - LONG_AGO)
        maintained(api)
        set_watermark(connection, "clock_timestamp()")
    reader = psycopg.connect(api.settings.database_url)
    reader.execute("SELECT count(*) FROM activity_events")
    with clients_posting(api, user) as posted, ThreadPoolExecutor(1) as pool:
        hasty = maintained(api, patience_seconds=seconds / 2)
        patient = pool.submit(maintained, api, patience_seconds=seconds * 5 + 10)
        time.sleep(seconds / 2)
        assert not patient.done()
        reader.close()
        done = patient.result()
        time.sleep(0.2)

    assert (hasty.skipped, hasty.failed, hasty.dropped) == (2, 0, 0)
    assert all("is in use" in step.reason for step in hasty.steps if step.timed_out)
    assert (done.dropped, done.skipped, done.failed) == (2, 0, 0)
    assert set(posted.statuses) == {202}
    assert len(posted.statuses) == len(api.rows(user)) > seconds * 10
    assert max(posted.seconds) < 1


def test_a_held_reader_delays_the_drop_and_no_client(api: Served, user: str) -> None:  # S13
    drop_beside_a_reader(api, user, seconds=2)


@pytest.mark.heavy
def test_a_reader_of_a_minute_delays_the_drop_and_no_client(api: Served, user: str) -> None:  # S13
    drop_beside_a_reader(api, user, seconds=60)
