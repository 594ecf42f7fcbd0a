"""The ranker's read of an actor with many edges, beside a bare indexed SELECT of that actor's rows.

The table holds 5 million edges, 10,000 of each actor that is read. The peer loads an actor's edges with
SQLAlchemy and ranks them in Python. Times are those of the slowest of a hundred reads (p99). The second case
reads from a table with a hundredth of the edges, too.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

import psycopg
from psycopg import sql
from sqlalchemy import select
from sqlalchemy.orm import Session

from activity_platform.activity.edges import list_edges
from activity_platform.local.services import DATABASE
from benchmarks._models import InteractionEdge, engine
from benchmarks.harness import Comparison, Options, base, compare, limit, peer, stack

EDGES = 5_000_000
TIMES = 100
EDGES_AN_ACTOR = 10_000
READS = 100
PEER_READS = 20  # some 0.1 s each
STRONGEST = 50
HALF_LIFE_DAYS = 30.0

LOAD = """
    INSERT INTO interaction_edges
    SELECT 'user-' || n % %(actors)s, (ARRAY['saved', 'tapped', 'visited'])[1 + n % 3], 'event',
           'event-' || n, (1 + n % 40) / 2.0, 1, %(now)s, %(now)s::timestamptz - n % 5000000 * interval '3 s'
    FROM generate_series(1, %(edges)s) AS n
""".replace("n % ", "n %% ")

BARE_SELECT = "SELECT * FROM interaction_edges WHERE actor_id = %s"

RANKED, IN_PYTHON, BARE = "list_edges", "SQLAlchemy, ranked in Python", "bare SELECT"


def run(options: Options) -> Iterator[Comparison]:
    """Milliseconds at p99: ranked, ranked in Python, and only read; and ranked from a small table."""
    edges = options.size(EDGES)
    with stack() as running:
        with psycopg.connect(running.database_url("postgres"), autocommit=True) as server:
            statement = sql.SQL("CREATE DATABASE small TEMPLATE {}")
            server.execute(statement.format(sql.Identifier(DATABASE)))
        with (
            closing(Table(running.database_url(), edges)) as large,
            closing(Table(running.database_url("small"), max(1, edges // TIMES))) as small,
        ):
            yield compare(
                "read",
                f"the {STRONGEST} strongest of an actor's {large.edges_an_actor:,}",
                "ms at p99",
                {RANKED: large.ranked, IN_PYTHON: large.ranked_in_python, BARE: large.bare},
                options,
                [peer(IN_PYTHON), limit(BARE, 1 / 3)],
                less_is_better=True,
            )
            less, more = f"a table of {small.edges:,} edges", f"a table of {large.edges:,} edges"
            yield compare(
                "read",
                f"{TIMES} times the edges",
                "ms at p99",
                {more: large.ranked, less: small.ranked},
                options,
                [base(less)],
                less_is_better=True,
            )


class Table:
    """An edge table, and reads of its actors in turn."""

    def __init__(self, database_url: str, edges: int) -> None:
        self.edges = edges
        self.edges_an_actor = min(edges, EDGES_AN_ACTOR)
        actors = edges // self.edges_an_actor
        self._now = datetime.now(UTC)
        self._actors = itertools.cycle(f"user-{number}" for number in range(actors))
        self._connection = psycopg.connect(database_url, autocommit=True)
        self._engine = engine(database_url)
        self._session = Session(self._engine)
        self._connection.execute(LOAD, {"edges": edges, "actors": actors, "now": self._now})
        self._connection.execute("VACUUM ANALYZE interaction_edges")

    def close(self) -> None:
        self._session.close()
        self._engine.dispose()
        self._connection.close()

    def ranked(self) -> float:
        def read() -> None:
            edges = list_edges(
                self._connection, next(self._actors), now=self._now, half_life_days=HALF_LIFE_DAYS
            )
            assert len(edges) == STRONGEST

        return _p99(read, READS)

    def ranked_in_python(self) -> float:
        def read() -> None:
            edges = self._session.scalars(
                select(InteractionEdge).where(InteractionEdge.actor_id == next(self._actors))
            )
            assert len(heapq.nlargest(STRONGEST, edges, key=self._rank)) == STRONGEST
            self._session.rollback()  # the end of a request: what it loaded is forgotten
            self._session.expunge_all()

        return _p99(read, PEER_READS)

    def bare(self) -> float:
        def read() -> None:
            assert self._connection.execute(BARE_SELECT, [next(self._actors)]).fetchall()

        return _p99(read, READS)

    def _rank(self, edge: InteractionEdge) -> float:
        days = max(0.0, (self._now - edge.last_at).total_seconds() / 86_400)
        return math.log2(edge.weight) - days / HALF_LIFE_DAYS


def _p99(read: Callable[[], None], times: int) -> float:
    """Milliseconds at the 99th percentile of the times that reads took."""
    took: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        read()
        took.append(time.perf_counter() - started)
    return sorted(took)[times * 99 // 100 - 1] * 1_000
