"""Folding a window of events onto edges that exist, beside the bare GROUP BY that finds the same sums.

The window holds 2 million events, one in five foldable, which go to 100,000 edges: four an edge. The fold
also writes the edges, in slices of its usual size. The second case folds the same window onto a table that
holds ten times the edges. The third says how many of the updates were HOT, needing no new index entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
from psycopg import sql

from activity_platform.activity import partitions, rollup, rollup_sql
from activity_platform.local.services import DATABASE, Stack
from benchmarks.harness import Comparison, Options, Target, compare, stack

EVENTS = 2_000_000
EDGES = 100_000
EDGES_AN_ACTOR = 20
SPAN = timedelta(minutes=50)

LOAD_EVENTS = f"""
    INSERT INTO activity_events (user_id, verb, object_type, object_id, surface, context, created_at)
    SELECT 'user-' || edge / {EDGES_AN_ACTOR}, CASE WHEN n % 5 = 0 THEN 'save' ELSE 'impression' END,
           'event', 'event-' || edge, 'feed', '{{"rank": 3, "query": "coffee near me", "model": "v12"}}',
           %(start)s::timestamptz + n * (%(span)s::interval / %(events)s)
    FROM (SELECT n, floor(random() * %(edges)s)::int AS edge FROM generate_series(1, %(events)s) AS n) AS made
""".replace("n % 5", "n %% 5")

LOAD_EDGES = f"""
    INSERT INTO interaction_edges
    SELECT 'user-' || edge / {EDGES_AN_ACTOR}, 'saved', 'event', 'event-' || edge, 3, 1, %(at)s, %(at)s
    FROM generate_series(%(first)s::int, %(last)s::int) AS edge ORDER BY random()
"""

GROUP_BY = sql.SQL("""
    SELECT count(*) FROM (
        SELECT event.user_id, rule.edge_type, event.object_type, event.object_id,
               sum(rule.weight), count(*), min(event.created_at), max(event.created_at)
        FROM activity_events AS event
        JOIN (VALUES {rules}) AS rule (verb, edge_type, weight) ON rule.verb = event.verb
        WHERE event.created_at > %(lower)s AND event.created_at <= %(upper)s
        GROUP BY event.user_id, rule.edge_type, event.object_type, event.object_id
    ) AS grouped
""").format(rules=rollup_sql.RULES)


class Window:
    """A database with the window's events and `edges` edges, of which the first EDGES take part."""

    def __init__(self, database_url: str, options: Options, start: datetime) -> None:
        self.url = database_url
        self.connection = psycopg.connect(database_url, autocommit=True)
        self.events = options.size(EVENTS)
        self.start = start

    def load_events(self, options: Options) -> None:
        partitions.maintain(self.url, now=self.start, retention_days=0, ahead=1)
        parameters = {"start": self.start, "span": SPAN, "events": self.events, "edges": options.size(EDGES)}
        self.connection.execute(LOAD_EVENTS, parameters)

    def load_edges(self, first: int, last: int) -> None:
        self.connection.execute(LOAD_EDGES, {"at": self.start, "first": first, "last": last})
        self.connection.execute("VACUUM ANALYZE")

    def fold(self) -> float:
        self.connection.execute("UPDATE activity_rollup_state SET watermark = %s", [self.start])
        self.connection.execute("TRUNCATE activity_rollup_slice")
        started = time.perf_counter()
        result = rollup.fold(self.url, lag_seconds=0)
        took = time.perf_counter() - started
        assert result.events == self.events // 5
        return self.events / took

    def group_by(self) -> float:
        started = time.perf_counter()
        self.connection.execute(GROUP_BY, {"lower": self.start, "upper": self.start + SPAN})
        return self.events / (time.perf_counter() - started)

    def updates(self) -> tuple[int, int]:
        """How many rows of the edge table were updated so far, and how many of the updates were HOT."""
        ((updated, hot),) = self.connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'interaction_edges'"
        )
        return int(updated), int(hot)


def run(options: Options) -> Iterator[Comparison]:
    """Events a second: folded, only grouped, and folded onto the larger table."""
    with stack() as running:
        small, large = _windows(running, options)
        yield compare(
            "fold",
            "2 million events onto existing edges",
            "events/s",
            {"fold": small.fold, "group by": small.group_by},
            options,
            [Target("fold", "group by", at_least=0.30)],
        )
        yield compare(
            "fold",
            "the same onto ten times the edges",
            "events/s",
            {"ten times the edges": large.fold, "fold": small.fold},
            options,
            [Target("ten times the edges", "fold", at_least=1 / 1.5)],
        )
        yield _hot(small)
        small.connection.close()
        large.connection.close()


def _windows(running: Stack, options: Options) -> tuple[Window, Window]:
    start = datetime.now().astimezone() - timedelta(hours=1)
    small = Window(running.database_url(), options, start)
    small.load_events(options)
    small.load_edges(0, options.size(EDGES) - 1)
    small.connection.close()
    with psycopg.connect(running.database_url("postgres"), autocommit=True) as server:
        server.execute(f"CREATE DATABASE large TEMPLATE {DATABASE}")
    large = Window(running.database_url("large"), options, start)
    large.load_edges(options.size(EDGES), 10 * options.size(EDGES) - 1)
    return Window(running.database_url(), options, start), large


def _hot(window: Window) -> Comparison:
    updated, hot = window.updates()
    return Comparison(
        "fold",
        "updates that need no index entry",
        "updates",
        {"HOT updates": [hot], "updates": [updated]},
        [Target("HOT updates", "updates", at_least=0.90)],
    )
