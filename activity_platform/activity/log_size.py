"""How large the activity log is, from the catalog alone: no event is read."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

SIZE_SQL = """
SELECT count(*), coalesce(sum(pg_total_relation_size(tree.relid)), 0)::bigint,
       coalesce(sum(greatest(table_.reltuples, 0)), 0)::bigint
FROM pg_partition_tree('activity_events') AS tree
JOIN pg_class AS table_ ON table_.oid = tree.relid
WHERE tree.isleaf
"""


@dataclass(frozen=True)
class LogSize:
    """Partitions, bytes with indexes, and rows as the last ANALYZE estimated them."""

    partitions: int
    bytes: int
    rows_estimated: int


def measure(connection: psycopg.Connection) -> LogSize:
    """The log's size as the catalog knows it."""
    row = connection.execute(SIZE_SQL).fetchone()
    return LogSize(*row) if row else LogSize(0, 0, 0)
