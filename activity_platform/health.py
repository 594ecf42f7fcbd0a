"""The platform in numbers, and how far each may go: for `/metrics`, for the checks in Dagster, for alarms.

    collect(settings) → readings   →   judge(readings) → a verdict a limit
                                   →   exposition(readings), Prometheus' text format

Nothing here raises because a system is away: that is a reading, too. Reading takes some short queries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from activity_platform.activity import checks
from activity_platform.failures import PlatformError
from activity_platform.gateways import dagster_database, postgres, queue
from activity_platform.settings import Settings

PREFIX = "activity_platform_"
#: A scrape and a page that several people look at cost one look.
FRESH_SECONDS = 5.0

#: What each number is, and the label that tells several apart.
MEASURES: Mapping[str, tuple[str, str | None]] = {
    "up": ("Whether the system answers.", "system"),
    "queue_depth": ("Messages that wait.", "queue"),
    "queue_oldest_seconds": ("How long the first message of the queue has waited.", "queue"),
    "queue_dead": ("Messages that were given up and wait for people.", "queue"),
    "fold_lag_seconds": ("How far the edges are behind the log.", None),
    "months_missing": ("Months up to PARTITIONS_AHEAD that have no partition.", None),
    "months_overdue": ("Months past retention that are still there.", None),
    "default_rows": ("Events that no month took.", None),
    "daemon_heartbeat_seconds": ("Since Dagster's daemon last gave a sign of life.", "daemon"),
    "run_waiting_seconds": ("The oldest run that has not begun, or not ended though it should.", "status"),
    "runs_failed": ("Runs that failed within the last hour.", None),
    "tick_failed": ("Whether the newest look of a schedule or sensor failed.", "name"),
    "tick_seconds": ("Since the newest look of a schedule or sensor.", "name"),
    "database_bytes": ("The size of a database.", "database"),
    "connections_share": ("The part of PostgreSQL's connections in use.", None),
}

SIZES = """
SELECT pg_database_size(current_database()),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::float8
       / current_setting('max_connections')::integer
"""


@dataclass(frozen=True)
class Reading:
    """One number of `MEASURES`. `of` is the label's value."""

    measure: str
    value: float
    of: str = ""


@dataclass(frozen=True)
class Limit:
    """How far a number may go. `by_label` has other limits for some; `least` matters for few.

    `system` is what must answer for the number to be there at all. `severe`: work stands still or is at risk.
    """

    name: str
    measure: str
    system: str
    most: float
    about: str
    cure: str
    severe: bool = False
    least: float = 0.0
    by_label: Mapping[str, float] = field(default_factory=dict)

    def allows(self, reading: Reading) -> bool:
        return self.least <= reading.value <= self.by_label.get(reading.of, self.most)


@dataclass(frozen=True)
class Verdict:
    """How a limit is kept: the worst reading, or what is in the way of reading."""

    limit: Limit
    passed: bool
    worst: Reading | None
    text: str


#: An audience's message may go through all its attempts first: some 80 minutes.
AUDIENCE_SECONDS = 2 * 60 * 60
DRAIN_SECONDS = 5 * 60
FOLD_LAG_SECONDS = 5 * 60
#: Of all databases together within a day; only who remembers yesterday's size can tell it.
GROWTH = "growth_bytes"
GROWTH_BYTES = 10 * 1024**3

LIMITS = (
    Limit(
        "queue_age",
        "queue_oldest_seconds",
        "redis",
        most=AUDIENCE_SECONDS,
        by_label={queue.LAST_ACTIVITY: DRAIN_SECONDS},
        severe=True,
        about="No message waits for too long.",
        cure="see the sensor's ticks, then the newest failed runs of that queue",
    ),
    Limit(
        "dead_letters",
        "queue_dead",
        "redis",
        most=0,
        about="No message was given up.",
        cure="see the asset dead_letters for the reasons; cure them, then launch replay_dead_letters",
    ),
    Limit(
        "fold_lag",
        "fold_lag_seconds",
        "postgresql",
        most=FOLD_LAG_SECONDS,
        least=-1.0,
        severe=True,
        about="Edges follow the log within minutes.",
        cure="see the newest run of interaction_edges_job for what held the watermark",
    ),
    Limit(
        "months_ahead",
        "months_missing",
        "postgresql",
        most=0,
        severe=True,
        about="The coming months have their partitions.",
        cure="run `activity-platform partitions apply` and read what it says",
    ),
    Limit(
        "default_rows",
        "default_rows",
        "postgresql",
        most=0,
        about="Every event is in a month.",
        cure="run `activity-platform partitions apply`, which moves them; see which clock stamped them",
    ),
    Limit(
        "daemon_heartbeat",
        "daemon_heartbeat_seconds",
        "dagster",
        most=120,
        severe=True,
        about="Dagster's daemon works.",
        cure="start `dagster-daemon run`; if it runs, its log tells",
    ),
    Limit(
        "waiting_runs",
        "run_waiting_seconds",
        "dagster",
        most=60 * 60,
        about="Runs get their turn.",
        cure="see the oldest waiting run for what it waits for",
    ),
    Limit(
        "ticks",
        "tick_failed",
        "dagster",
        most=0,
        about="The newest look of every schedule and sensor went well.",
        cure="see its ticks for the error",
    ),
    Limit(
        "connections",
        "connections_share",
        "postgresql",
        most=0.8,
        about="PostgreSQL has connections left.",
        cure="raise max_connections, or lower max_concurrent_runs in dagster.yaml",
    ),
    Limit(
        "disk_growth",
        GROWTH,
        "postgresql",
        most=GROWTH_BYTES,
        about="The databases don't grow by more than a disk takes.",
        cure="see database_bytes for which one grows; the log's RETENTION_DAYS and HISTORY_DAYS bound them",
    ),
)


def collect(settings: Settings) -> tuple[Reading, ...]:
    """What the chosen domains stand on, as it is now; a system whose address isn't set is not looked at."""
    systems = list(_systems(settings))
    # Side by side: several that are away must not make a scrape wait for each in turn.
    with ThreadPoolExecutor(len(systems), "health") as pool:
        looks = pool.map(lambda one: _look(one[0], one[1], settings), systems)
        return tuple(reading for look in looks for reading in look)


def judge(readings: Sequence[Reading], limits: Iterable[Limit] = LIMITS) -> list[Verdict]:
    """A verdict on each limit of systems that were looked at."""
    up = {reading.of: bool(reading.value) for reading in readings if reading.measure == "up"}
    return [
        _judge(limit, readings)
        if up[limit.system]
        else Verdict(limit, False, None, f"{limit.system} is away")
        for limit in limits
        if limit.system in up
    ]


def exposition(readings: Iterable[Reading]) -> bytes:
    """Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Gauges(readings))
    return generate_latest(registry)


class Watch:
    """Readings that are at most some seconds old, for any number of threads: one looks, the others wait."""

    def __init__(
        self, read: Callable[[], Sequence[Reading]], *, fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        self._read = read
        self._fresh_seconds = fresh_seconds
        self._lock = threading.Lock()
        self._readings: Sequence[Reading] = ()
        self._read_at = float("-inf")

    def readings(self) -> Sequence[Reading]:
        with self._lock:
            if time.monotonic() - self._read_at > self._fresh_seconds:
                self._readings = self._read()
                self._read_at = time.monotonic()
            return self._readings


def _systems(settings: Settings) -> Iterator[tuple[str, Callable[[Settings], Iterator[Reading]]]]:
    yield "postgresql", _postgres
    if settings.redis_url and not {"audience", "last_activity"}.isdisjoint(settings.domains):
        yield "redis", _redis
    if settings.dagster_postgres_url:
        yield "dagster", _dagster


def _look(system: str, read: Callable[[Settings], Iterator[Reading]], settings: Settings) -> list[Reading]:
    found: list[Reading] = []
    try:
        found += read(settings)
    except (PlatformError, psycopg.Error):
        return [*found, Reading("up", 0, system)]
    return [*found, Reading("up", 1, system)]


def _postgres(settings: Settings) -> Iterator[Reading]:
    with _connection(settings.database_url) as connection, postgres.outages_named():
        ((size, share),) = connection.execute(SIZES)
        yield Reading("database_bytes", size, "platform")
        yield Reading("connections_share", share)
        if "activity" not in settings.domains:
            return
        yield Reading("fold_lag_seconds", checks.check_lag(connection, most_seconds=0).seconds)
        months = checks.check_months(
            connection, now=None, retention_days=settings.retention_days, ahead=settings.partitions_ahead
        )
        yield Reading("months_missing", len(months.missing))
        yield Reading("months_overdue", len(months.overdue))
        yield Reading("default_rows", months.default_rows)


def _redis(settings: Settings) -> Iterator[Reading]:
    queues = [name for name in queue.QUEUES if _domain_of(name) in settings.domains]
    with closing(queue.connect(settings.redis_url)) as client:
        for status in queue.Queues(client).status(queues):
            yield Reading("queue_depth", status.depth, status.queue)
            yield Reading("queue_dead", status.dead, status.queue)
            yield Reading("queue_oldest_seconds", status.oldest_seconds or 0, status.queue)


def _domain_of(queue_name: str) -> str:
    return "last_activity" if queue_name == queue.LAST_ACTIVITY else "audience"


def _dagster(settings: Settings) -> Iterator[Reading]:
    with _connection(settings.dagster_postgres_url) as connection, postgres.outages_named():
        state = dagster_database.read_state(connection)
    for daemon in dagster_database.DAEMONS:
        yield Reading("daemon_heartbeat_seconds", state.heartbeats.get(daemon, float("inf")), daemon)
    for status in dagster_database.WAITING:
        yield Reading("run_waiting_seconds", state.waiting.get(status, 0), status)
    yield Reading("runs_failed", state.failed_runs)
    for tick in state.ticks:
        yield Reading("tick_failed", tick.failed, tick.name)
        yield Reading("tick_seconds", tick.seconds_ago, tick.name)
    yield Reading("database_bytes", state.bytes, "dagster")


def _connection(url: str) -> psycopg.Connection:
    return postgres.connect(url, application_name="activity-platform health")


def _judge(limit: Limit, readings: Sequence[Reading]) -> Verdict:
    there = [reading for reading in readings if reading.measure == limit.measure]
    if not there:
        return Verdict(limit, True, None, "there is nothing to measure yet")
    beyond = [reading for reading in there if not limit.allows(reading)]
    worst = max(beyond or there, key=lambda reading: abs(reading.value))
    text = ", ".join(f"{reading.of} {reading.value:g}".strip() for reading in beyond or [worst])
    return Verdict(limit, not beyond, worst, text)


class _Gauges(Collector):
    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = tuple(readings)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for measure, (about, label) in MEASURES.items():
            family = GaugeMetricFamily(PREFIX + measure, about, labels=[label] if label else [])
            for reading in self._readings:
                if reading.measure == measure:
                    family.add_metric([reading.of] if label else [], reading.value)
            if family.samples:
                yield family
