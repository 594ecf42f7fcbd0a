"""Rows of the log put there directly, with stamps of one's choice, and the edges that came of them."""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString

import psycopg
from psycopg import sql

from activity_platform.activity.vocabulary import Verb

Key = tuple[str, str, str, str]


def add_event(
    connection: psycopg.Connection,
    target: str = "t1",
    *,
    user: str = "u1",
    verb: str = "save",
    at: datetime | str | None = None,
    times: int = 1,
) -> None:
    """Inserts `times` equal events; `at` None is the column's default, the clock at the insert."""
    stamp = sql.SQL("DEFAULT") if at is None else sql.Literal(at) + sql.SQL("::timestamptz")
    row = sql.SQL("({}, {}, 'event', {}, {})").format(user, verb, target, stamp)
    connection.execute(
        sql.SQL(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at) VALUES {}"
        ).format(sql.SQL(", ").join([row] * times))
    )


#: Events evenly over days of September; each verb as often as any other, and every fourth with a context.
FILL = """
    CREATE TABLE activity_events_y2026m09 PARTITION OF activity_events
        FOR VALUES FROM ('2026-09-01Z') TO ('2026-10-01Z');
    INSERT INTO activity_events (user_id, verb, object_type, object_id, surface, context, created_at)
    SELECT 'user-' || n * 7919 % 50000, ({verbs}::text[])[1 + n % {count}],
           'event', 'event-' || n * 104729 % 5000, 'feed',
           CASE WHEN n % 4 = 0 THEN jsonb_build_object('rank', n % 100, 'model', 'v12') END,
           '2026-09-01Z'::timestamptz + n * ({span}::interval / {events})
    FROM generate_series(0::bigint, {events} - 1) AS n;
    ANALYZE activity_events
"""


def fill_september(connection: psycopg.Connection, events: int, *, days: int = 30) -> None:
    """So many events in a partition for September 2026, over its first days."""
    verbs = [str(verb) for verb in Verb]
    connection.execute(
        sql.SQL(FILL).format(
            verbs=sql.Literal(verbs),
            count=sql.Literal(len(verbs)),
            events=sql.Literal(events),
            span=sql.Literal(f"{days} days"),
        )
    )


def weights(connection: psycopg.Connection) -> dict[str, float]:
    """Target → weight, over all edges."""
    rows = connection.execute("SELECT target_id, sum(weight) FROM interaction_edges GROUP BY 1")
    return dict(rows.fetchall())


def edge_rows(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    """Every edge with the id of the transaction that last wrote it."""
    return connection.execute("SELECT *, xmin::text FROM interaction_edges ORDER BY 1, 2, 3, 4").fetchall()


def set_watermark(connection: psycopg.Connection, expression: LiteralString) -> datetime:
    """Moves the watermark to an SQL expression, as an operator might."""
    ((watermark,),) = connection.execute(
        sql.SQL("UPDATE activity_rollup_state SET watermark = {} RETURNING watermark").format(
            sql.SQL(expression)
        )
    )
    assert isinstance(watermark, datetime)
    return watermark
