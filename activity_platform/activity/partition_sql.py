"""Statements of the partition maintenance that name no table; those that do are built where they run."""

from __future__ import annotations

#: One maintenance at a time: the lock of the session that works. An arbitrary number of ours.
LOCK_MAINTENANCE = "SELECT pg_advisory_lock(6301401881)"

#: Bounds as PostgreSQL itself reads them; null is unbounded, as is what a calendar date can't say.
#: By the index of pg_inherits on the parent.
PARTITIONS = r"""
    SELECT namespace.nspname, child.relname, link.inhdetachpending, bound.text = 'DEFAULT',
           CASE WHEN lower.at > '0001-01-01 UTC' THEN lower.at END,
           CASE WHEN upper.at < '9999-12-31 UTC' THEN upper.at END
    FROM pg_inherits AS link
    JOIN pg_class AS child ON child.oid = link.inhrelid
    JOIN pg_namespace AS namespace ON namespace.oid = child.relnamespace
    CROSS JOIN LATERAL (SELECT pg_get_expr(child.relpartbound, child.oid)) AS bound (text)
    CROSS JOIN LATERAL (
        SELECT (regexp_match(bound.text, $$FROM \('([^']+)'\)$$))[1]::timestamptz) AS lower (at)
    CROSS JOIN LATERAL (
        SELECT (regexp_match(bound.text, $$TO \('([^']+)'\)$$))[1]::timestamptz) AS upper (at)
    WHERE link.inhparent = 'activity_events'::regclass
    ORDER BY lower.at NULLS FIRST, child.relname
"""

#: Relations beside the log that have the name of a month and are no partition of it.
OTHERS = r"""
    SELECT other.relname, CASE
               WHEN parent.oid IS NOT NULL THEN 'a partition of ' || parent.relname
               WHEN other.relkind IN ('r', 'p') THEN 'a table that is not attached'
               WHEN other.relkind = 'v' THEN 'a view'
               WHEN other.relkind = 'm' THEN 'a materialized view'
               WHEN other.relkind = 'f' THEN 'a foreign table'
               WHEN other.relkind = 'S' THEN 'a sequence'
               WHEN other.relkind IN ('i', 'I') THEN 'an index'
               ELSE 'a type' END
    FROM pg_class AS other
    LEFT JOIN pg_inherits AS link ON link.inhrelid = other.oid
    LEFT JOIN pg_class AS parent ON parent.oid = link.inhparent
    WHERE other.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'activity_events'::regclass)
      AND other.relname ~ '^activity_events_y\d{4}m\d{2}(_\d+)?$'
      AND link.inhparent IS DISTINCT FROM 'activity_events'::regclass
"""

#: The columns that a row of the log is moved with.
COLUMNS = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = 'activity_events'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    ORDER BY attnum
"""

#: What DEFAULT holds, by UTC month. Reads the whole of DEFAULT, which should be empty.
STRAYS = """
    SELECT date_trunc('month', created_at, 'UTC'), count(*), min(created_at), max(created_at)
    FROM {default}
    WHERE created_at >= '0002-01-01 UTC' AND created_at < '9000-01-01 UTC'
    GROUP BY 1 ORDER BY 1
"""

#: Rows of DEFAULT that no month can take.
UNPLACEABLE = """
    SELECT count(*) FROM {default}
    WHERE created_at < '0002-01-01 UTC' OR created_at >= '9000-01-01 UTC'
"""

#: From DEFAULT into a month that is not attached yet.
MOVE = """
    WITH moved AS (
        DELETE FROM {default} WHERE created_at >= %(lower)s AND created_at < %(upper)s RETURNING {columns}
    )
    INSERT INTO {partition} ({columns}) SELECT {columns} FROM moved
"""

#: Rows of DEFAULT that are past retention and folded.
DELETE_STRAYS = """
    DELETE FROM {default} WHERE created_at < %(before)s AND created_at <= %(watermark)s
"""
