"""Statements of the corpus' export. A day is the half-open span `[start, end)` of its UTC midnights.

The log is read by partition and, within one, by the BRIN index on created_at.
"""

from __future__ import annotations

from psycopg import sql

from activity_platform.activity.rollup_sql import FOLDABLE_VERBS

#: Rows and the sum of their ids by UTC day.
COUNT_DAYS = """
    SELECT (created_at AT TIME ZONE 'UTC')::date, count(*), (sum(id) %% %(modulus)s)::bigint
    FROM activity_events
    WHERE created_at >= %(start)s AND created_at < %(end)s
    GROUP BY 1 ORDER BY 1
"""

#: Rows stamped before every calendar, which have no day.
COUNT_UNDATED = "SELECT count(*) FROM activity_events WHERE created_at < %(start)s"

#: What an earlier file of the day holds. Gone with the transaction.
CREATE_EXPORTED = """
    CREATE TEMPORARY TABLE exported (
        id bigint, user_id text COLLATE "C", verb text COLLATE "C", object_type text COLLATE "C",
        object_id text COLLATE "C", surface text, context text, created_at timestamptz, late boolean
    ) ON COMMIT DROP
"""
COPY_EXPORTED = "COPY exported FROM STDIN"

#: Events of the day that no edge holds. Gone with the transaction.
CREATE_LATE = "CREATE TEMPORARY TABLE late_event (id bigint) ON COMMIT DROP"

#: The span of the slices that touch the day, widened to the day, and how many events they folded. By the
#: primary key.
SPAN_OF_SLICES = """
    SELECT least(min(lower), %(start)s::timestamptz - interval '1 microsecond'),
           greatest(max(upper), %(end)s::timestamptz - interval '1 microsecond'),
           coalesce(sum(events), 0)::bigint
    FROM activity_rollup_slice
    WHERE name = %(name)s AND upper >= %(start)s AND lower < %(end)s::timestamptz - interval '1 microsecond'
"""

#: Events of a window of slices with their places in their slice. A slice folded the first of its events by
#: id, as many as it says: ids are given at the insert, and what came after the slice has a higher one.
#: `folded` is null where no slice was. Slices by primary key.
RANKED = """
    SELECT event.id, event.created_at, slice.events AS folded,
           row_number() OVER (PARTITION BY slice.upper ORDER BY event.id) AS place
    FROM activity_events AS event
    LEFT JOIN LATERAL (
        SELECT lower, upper, events FROM activity_rollup_slice
        WHERE name = %(name)s AND upper >= event.created_at ORDER BY upper LIMIT 1
    ) AS slice ON slice.lower < event.created_at
    WHERE event.created_at > %(lower)s AND event.created_at <= %(upper)s AND event.verb IN ({verbs})
"""

#: Events of the day that came after their slice.
FIND_LATE = sql.SQL(f"""
    INSERT INTO late_event SELECT id FROM ({RANKED}) AS ranked
    WHERE created_at >= %(start)s AND created_at < %(end)s AND (folded IS NULL OR place > folded)
""").format(verbs=FOLDABLE_VERBS)  # noqa: S608

_NEW = """
    FROM activity_events AS event
    WHERE created_at >= %(start)s AND created_at < %(end)s
      AND NOT EXISTS (
        SELECT FROM exported AS old
        WHERE old.id = event.id AND old.user_id = event.user_id AND old.created_at = event.created_at)
"""

#: What was not there when the day was exported first came after the fold had passed it.
FIND_LATER = sql.SQL(f"INSERT INTO late_event SELECT id {_NEW} AND verb IN ({{verbs}})").format(
    verbs=FOLDABLE_VERBS
)

#: The columns of `corpus.SCHEMA`, the time in microseconds since 1970. What is in an earlier file stays.
DAY = f"""
    SELECT id, user_id, verb, object_type, object_id, surface, context,
           (extract(epoch FROM created_at) * 1000000)::bigint, late
    FROM (
        SELECT id, user_id, verb, object_type, object_id, surface, context::text, created_at,
               id IN (SELECT id FROM late_event) AS late {_NEW}
        UNION ALL
        SELECT * FROM exported
    ) AS event
    ORDER BY user_id, created_at, id
"""  # noqa: S608

#: Months in which events were folded. A slice that reaches into a month by less than a day may hold events of
#: the month before alone. Primary key.
FOLDED_MONTHS = """
    SELECT date_trunc('month', upper, 'UTC')::date
    FROM activity_rollup_slice
    WHERE name = %(name)s
    GROUP BY 1
    HAVING sum(events) > 0 AND max(upper) > date_trunc('month', max(upper), 'UTC') + interval '1 day'
    ORDER BY 1
"""
