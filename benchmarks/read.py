"""The ranker's read of an actor with many edges, beside a bare indexed SELECT of that actor's rows.

The table holds 5 million edges, 10,000 of each actor that is read. Rates are those of the slowest of a
hundred reads (p99), so a ratio of 1/3 says: p99 within three times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psycopg

from activity_platform.activity.edges import list_edges
from benchmarks.harness import Comparison, Options, Target, compare, stack

EDGES = 5_000_000
EDGES_AN_ACTOR = 10_000
READS = 300

LOAD = """
    INSERT INTO interaction_edges
    SELECT 'user-' || n % %(actors)s, (ARRAY['saved', 'tapped', 'visited'])[1 + n % 3], 'event',
           'event-' || n, (1 + n % 40) / 2.0, 1, %(now)s, %(now)s::timestamptz - n % 5000000 * interval '3 s'
    FROM generate_series(1, %(edges)s) AS n
""".replace("n % ", "n %% ")

BARE_SELECT = "SELECT * FROM interaction_edges WHERE actor_id = %s"


def run(options: Options) -> Iterator[Comparison]:
    """Reads a second at p99: ranked, and bare."""
    now = datetime.now(UTC)
    with stack() as running, psycopg.connect(running.database_url(), autocommit=True) as connection:
        edges = options.size(EDGES)
        actors = max(1, edges // EDGES_AN_ACTOR)
        connection.execute(LOAD, {"edges": edges, "actors": actors, "now": now})
        connection.execute("VACUUM ANALYZE interaction_edges")
        chosen = itertools.cycle(f"user-{number}" for number in range(actors))

        def ranked() -> None:
            assert len(list_edges(connection, next(chosen), now=now, half_life_days=30)) == 50

        def bare() -> None:
            assert connection.execute(BARE_SELECT, [next(chosen)]).fetchall()

        yield compare(
            "read",
            "the 50 strongest of 10,000 edges",
            "reads/s at p99",
            {"list_edges": lambda: _slowest(ranked), "bare select": lambda: _slowest(bare)},
            options,
            [Target("list_edges", "bare select", at_least=1 / 3)],
        )


def _slowest(read: Callable[[], None]) -> float:
    """The rate at the 99th percentile of the times that reads took."""
    took: list[float] = []
    for _ in range(READS):
        started = time.perf_counter()
        read()
        took.append(time.perf_counter() - started)
    return 1 / sorted(took)[READS * 99 // 100 - 1]
