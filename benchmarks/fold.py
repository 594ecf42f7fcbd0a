"""Folding a window of events onto edges that exist, beside the bare GROUP BY that finds the same sums.

The window holds 2 million events, one in five foldable, which go to 100,000 edges: four an edge. The fold
also writes the edges, in slices of its usual size. The peer reads the foldable events into pandas, sums them
there and upserts the sums with SQLAlchemy. The second case folds the same window onto a table that holds ten
times the edges, the third a tenth of it onto a hundred times its edges. The last says how many of the updates
were HOT, needing no new index entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import psycopg
from psycopg import sql
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from activity_platform.activity import partitions, rollup, rollup_sql
from activity_platform.activity.vocabulary import EDGE_RULES
from activity_platform.local.services import DATABASE, Stack
from benchmarks._models import ActivityEvent, InteractionEdge, session
from benchmarks.harness import Comparison, Options, base, compare, limit, peer, stack

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


FOLD, PANDAS, GROUP_BY_ALONE = "fold", "pandas and SQLAlchemy", "bare GROUP BY"


class Window:
    """A database with the window's events, and edges of which the first take part."""

    def __init__(self, database_url: str, start: datetime, events: int) -> None:
        self.url = database_url
        self.connection = psycopg.connect(database_url, autocommit=True)
        self.start = start
        self.events = events

    def close(self) -> None:
        self.connection.close()

    def load_events(self, edges: int) -> None:
        """The events, each of one of the first `edges`."""
        partitions.maintain(self.url, now=self.start, retention_days=0, ahead=1)
        parameters = {"start": self.start, "span": SPAN, "events": self.events, "edges": edges}
        self.connection.execute(LOAD_EVENTS, parameters)

    def load_edges(self, numbers: range) -> None:
        parameters = {"at": self.start, "first": numbers[0], "last": numbers[-1]}
        self.connection.execute(LOAD_EDGES, parameters)
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

    def in_pandas(self) -> float:
        with session(self.url) as opened:
            started = time.perf_counter()
            read = select(
                ActivityEvent.user_id,
                ActivityEvent.verb,
                ActivityEvent.object_type,
                ActivityEvent.object_id,
                ActivityEvent.created_at,
            ).where(
                ActivityEvent.created_at > self.start,
                ActivityEvent.created_at <= self.start + SPAN,
                ActivityEvent.verb.in_(list(EDGE_RULES)),
            )
            edges = _summed(pd.read_sql(read, opened.connection()))
            upsert = insert(InteractionEdge)
            new = upsert.excluded
            opened.execute(
                upsert.on_conflict_do_update(
                    index_elements=["actor_id", "edge_type", "target_type", "target_id"],
                    set_={
                        "weight": InteractionEdge.weight + new.weight,
                        "event_count": InteractionEdge.event_count + new.event_count,
                        "first_at": func.least(InteractionEdge.first_at, new.first_at),
                        "last_at": func.greatest(InteractionEdge.last_at, new.last_at),
                    },
                ),
                _records(edges),
            )
            opened.commit()
            return self.events / (time.perf_counter() - started)

    def updates(self) -> tuple[int, int]:
        """How many rows of the edge table were updated so far, and how many of the updates were HOT."""
        ((updated, hot),) = self.connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'interaction_edges'"
        )
        return int(updated), int(hot)


def run(options: Options) -> Iterator[Comparison]:
    """Events a second: folded, only grouped, and folded onto larger tables."""
    events, edges = options.size(EVENTS), options.size(EDGES)
    with stack() as running:
        with _windows(running, events, edges, 10) as (small, large):
            yield compare(
                "fold",
                f"{events:,} events onto {edges:,} edges",
                "events/s",
                {FOLD: small.fold, PANDAS: small.in_pandas, GROUP_BY_ALONE: small.group_by},
                options,
                [peer(PANDAS), limit(GROUP_BY_ALONE, 0.30)],
            )
            yield _growth(small, large, edges, 10, options)
            yield _hot(small)
        events, edges = max(5, events // 10), max(1, edges // 10)
        with _windows(running, events, edges, 100) as (small, large):
            yield _growth(small, large, edges, 100, options)


def _growth(small: Window, large: Window, edges: int, times: int, options: Options) -> Comparison:
    less, more = f"fold onto {edges:,} edges", f"fold onto {times * edges:,} edges"
    return compare(
        "fold",
        f"{times} times the edges",
        "events/s",
        {more: large.fold, less: small.fold},
        options,
        [base(less, 1 / 1.5)],
    )


@contextmanager
def _windows(running: Stack, events: int, edges: int, times: int) -> Iterator[tuple[Window, Window]]:
    """The same window in two databases, whose tables hold `edges`, and `times` as many."""
    start = datetime.now().astimezone() - timedelta(hours=1)
    less, more = f"times_{times}_less", f"times_{times}_more"
    _create_database(running, less, DATABASE)
    with closing(Window(running.database_url(less), start, events)) as small:
        small.load_events(edges)
        small.load_edges(range(edges))
    _create_database(running, more, less)
    with closing(Window(running.database_url(more), start, events)) as large:
        large.load_edges(range(edges, times * edges))
        with closing(Window(running.database_url(less), start, events)) as small:
            yield small, large


def _create_database(running: Stack, name: str, template: str) -> None:
    with psycopg.connect(running.database_url("postgres"), autocommit=True) as server:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        server.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))


def _hot(window: Window) -> Comparison:
    updated, hot = window.updates()
    return Comparison(
        "fold",
        "updates that need no index entry",
        "updates",
        "HOT updates",
        {"HOT updates": [hot], "all updates": [updated]},
        [limit("all updates", 0.90)],
    )


def _summed(events: pd.DataFrame) -> pd.DataFrame:
    """The edges that the events add up to."""
    events["edge_type"] = events["verb"].map({verb: rule.edge_type for verb, rule in EDGE_RULES.items()})
    events["weight"] = events["verb"].map({verb: rule.weight for verb, rule in EDGE_RULES.items()})
    groups = events.groupby(["user_id", "edge_type", "object_type", "object_id"], as_index=False)
    return groups.agg(
        weight=("weight", "sum"),
        event_count=("weight", "size"),
        first_at=("created_at", "min"),
        last_at=("created_at", "max"),
    ).rename(columns={"user_id": "actor_id", "object_type": "target_type", "object_id": "target_id"})


def _records(edges: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in edges.to_dict("records")]
