"""The clocks of this host, PostgreSQL and Redis: each stamps tokens, events or queue entries."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from activity_platform.doctor.finding import Finding, ok, red, warn
from activity_platform.gateways import postgres, queue
from activity_platform.settings import Settings

#: Last activity and folds order by these clocks; beyond 30 s valid tokens are refused.
WARN_SECONDS, RED_SECONDS = 1.0, 5.0
HOST = "this host"


def look(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Finding]:
    """One line: how far each clock is from the middle one."""
    ahead = {HOST: 0.0, "PostgreSQL": _postgres_ahead(settings.database_url, clock)}
    if settings.redis_url:
        ahead["Redis"] = _redis_ahead(settings.redis_url, clock)
    yield _judge(ahead)


def _judge(ahead: Mapping[str, float]) -> Finding:
    middle = statistics.median(ahead.values()) if len(ahead) > 2 else 0.0
    apart = {name: seconds - middle for name, seconds in ahead.items()}
    text = ", ".join(f"{name} {round(seconds, 2) + 0.0:+.2f} s" for name, seconds in apart.items())
    name, seconds = max(apart.items(), key=lambda one: abs(one[1]))
    who = name if len(ahead) > 2 else " and ".join(ahead)
    cure = f"synchronize the clock of {who} with NTP (chrony, systemd-timesyncd)"
    if abs(seconds) > RED_SECONDS:
        return red("clocks", text, cure)
    if abs(seconds) > WARN_SECONDS:
        return warn("clocks", text, cure)
    return ok("clocks", text)


def _postgres_ahead(database_url: str, clock: Callable[[], datetime]) -> float:
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name="activity-platform doctor") as connection,
    ):

        def read() -> datetime:
            ((now,),) = connection.execute("SELECT clock_timestamp()")
            return cast(datetime, now)

        return _ahead(read, clock)


def _redis_ahead(redis_url: str, clock: Callable[[], datetime]) -> float:
    with queue.connect(redis_url) as client, queue.outages_named():

        def read() -> datetime:
            seconds, microseconds = cast(tuple[int, int], client.time())
            return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

        return _ahead(read, clock)


def _ahead(read: Callable[[], datetime], clock: Callable[[], datetime]) -> float:
    """Seconds that a server's clock is ahead of ours, by the quickest of three answers."""
    answers: list[tuple[timedelta, float]] = []
    for _ in range(3):
        before, there, after = clock(), read(), clock()
        answers.append((after - before, (there - before - (after - before) / 2).total_seconds()))
    return min(answers)[1]
