"""The ranker's read: an actor's edges, strongest first.

strength = weight × 0.5^(age / half-life), with age = now − last_at, never negative. Ranking goes by its
logarithm, log2(weight) − age / half-life, where nothing underflows; equal ranks are ordered by
(target_type, target_id, edge_type) in byte order. An odd row (old, future, weightless) has its place and
never fails the read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from activity_platform.failures import UsageError

DEFAULT_LIMIT = 50
MOST = 500
MOST_TARGETS = 200

#: Reads the rows of one actor by the primary key, which starts with it. An infinite time is given as the end
#: of what clients can hold. `%(now)s` null is the time of the statement. Columns are those of `Edge`.
#: The strength of what ranks below -1000 is 0, and the exponent goes in two halves: float8 raises an error
#: on underflow. The columns' collation makes text order byte order.
LIST_EDGES = """
    SELECT edge_type, target_type, target_id,
           CASE WHEN rank > -1000
                THEN weight * power(0.5, half_lives / 2) * power(0.5, half_lives / 2) ELSE 0 END AS strength,
           weight, event_count,
           least(greatest(first_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS first_at,
           least(greatest(last_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS last_at
    FROM (
        SELECT edge.*, half_lives,
               CASE WHEN weight > 0 THEN ln(weight) / ln(2::float8) ELSE '-Infinity' END - half_lives AS rank
        FROM interaction_edges AS edge
        CROSS JOIN LATERAL (
            SELECT greatest(
                0, date_part('epoch', coalesce(%(now)s::timestamptz, statement_timestamp()))
                   - date_part('epoch', last_at)
            ) / (86400 * %(half_life_days)s::float8) AS half_lives
        ) AS age
        WHERE actor_id = %(actor_id)s
          AND (%(edge_type)s::text IS NULL OR edge_type = %(edge_type)s)
          AND (%(target_type)s::text IS NULL
               OR target_type = %(target_type)s AND target_id = ANY (%(target_ids)s::text[]))
        ORDER BY rank DESC, target_type, target_id, edge_type
        LIMIT %(limit)s
    ) AS strongest
    ORDER BY rank DESC, target_type, target_id, edge_type
"""


@dataclass(frozen=True)
class Edge:
    """One affinity of an actor. `strength` is `weight` decayed to the time of the read."""

    edge_type: str
    target_type: str
    target_id: str
    strength: float
    weight: float
    event_count: int
    first_at: datetime
    last_at: datetime


def list_edges(
    connection: psycopg.Connection,
    actor_id: str,
    *,
    now: datetime | None,
    half_life_days: float,
    edge_type: str | None = None,
    targets: tuple[str, Sequence[str]] | None = None,
    limit: int = DEFAULT_LIMIT,
) -> list[Edge]:
    """The strongest `limit` edges of the actor, of one type or to some targets `(target_type, ids)` only.

    `now` None is the database's clock. An unknown edge type gives an empty list. Raises `UsageError` for a
    limit outside 1–500 or more than 200 targets.
    """
    parameters = list_parameters(
        actor_id,
        now=now,
        half_life_days=half_life_days,
        edge_type=edge_type,
        targets=targets,
        limit=limit,
    )
    return to_edges(connection.execute(LIST_EDGES, parameters))


def list_parameters(
    actor_id: str,
    *,
    now: datetime | None,
    half_life_days: float,
    edge_type: str | None = None,
    targets: tuple[str, Sequence[str]] | None = None,
    limit: int = DEFAULT_LIMIT,
) -> dict[str, Any]:
    """The binds of `LIST_EDGES`; arguments and errors as of `list_edges`."""
    target_type, target_ids = targets or (None, ())
    if not 1 <= limit <= MOST:
        raise UsageError(f"limit must be from 1 to {MOST}, not {limit}")
    if len(target_ids) > MOST_TARGETS:
        raise UsageError(f"at most {MOST_TARGETS} targets can be asked for, not {len(target_ids)}")
    return {
        "actor_id": _storable(actor_id),
        "now": now,
        "half_life_days": half_life_days,
        "edge_type": None if edge_type is None else _storable(edge_type),
        "target_type": None if target_type is None else _storable(target_type),
        "target_ids": [_storable(target_id) for target_id in target_ids],
        "limit": limit,
    }


def to_edges(rows: Iterable[tuple[Any, ...]]) -> list[Edge]:
    """The rows of `LIST_EDGES` as edges."""
    return [Edge(*row) for row in rows]


def _storable(text: str) -> str:
    # PostgreSQL can't even be asked for NUL or a lone surrogate. No stored text is empty: it matches nothing.
    return "" if "\0" in text or (not text.isascii() and _has_surrogate(text)) else text


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
