"""The audit's statements, all of one transaction. Their window is `(since, watermark]`.

Segments part the window at the ends of slices, one a month: `bounds` are these ends, and an event's segment
is the number of bounds before it. Temporary tables are gone with the transaction.
"""

from __future__ import annotations

from psycopg import sql

from activity_platform.activity.corpus_sql import RANKED
from activity_platform.activity.rollup_sql import FOLDABLE_VERBS, RULES

#: The snapshot's time, and how far the log is folded. Primary key.
START = "SELECT clock_timestamp(), watermark FROM activity_rollup_state WHERE name = %(name)s"

#: Month by month: the end of its newest slice, and how many events its slices folded. Primary key.
SEGMENTS = """
    SELECT max(upper), sum(events)::bigint FROM activity_rollup_slice
    WHERE name = %(name)s AND upper > %(since)s
    GROUP BY date_trunc('month', upper, 'UTC') ORDER BY 1
"""

#: Events of months that are gone from the log and were erased from the edges since. Primary key.
ERASED_BEFORE = """
    SELECT coalesce(-sum(events), 0)::bigint FROM activity_rollup_slice WHERE name = %(erased)s
"""

_SEGMENT = "width_bucket(event.created_at - interval '1 microsecond', %(bounds)s::timestamptz[])"
_LOGGED = """
    event.created_at > %(since)s AND event.created_at <= %(watermark)s AND event.verb IN ({verbs})
    AND (event.created_at AT TIME ZONE 'UTC')::date <> ALL (%(filed)s::date[])
"""

#: How many events that fold the log holds of each segment, without the days that are read from files.
COUNT_SEGMENTS = sql.SQL(f"""
    SELECT {_SEGMENT}, count(*) FROM activity_events AS event WHERE {_LOGGED} GROUP BY 1
""").format(verbs=FOLDABLE_VERBS)  # noqa: S608

#: Events that came after their slice, so that no edge may hold them.
CREATE_LATE = "CREATE TEMPORARY TABLE late_event (id bigint, segment integer) ON COMMIT DROP"

#: Those of `(lower, upper]`, which is one segment.
FIND_LATE = sql.SQL(f"""
    INSERT INTO late_event
    SELECT id, %(segment)s FROM ({RANKED}) AS ranked
    WHERE (folded IS NULL OR place > folded)
      AND (created_at AT TIME ZONE 'UTC')::date <> ALL (%(filed)s::date[])
""").format(verbs=FOLDABLE_VERBS)  # noqa: S608

#: All of one segment: its month is gone, and what the log has of it came after that.
ALL_LATE = sql.SQL(f"""
    INSERT INTO late_event SELECT id, %(segment)s FROM activity_events AS event
    WHERE {_LOGGED} AND {_SEGMENT} = %(segment)s
""").format(verbs=FOLDABLE_VERBS)  # noqa: S608

COUNT_LATE = "SELECT segment, count(*) FROM late_event GROUP BY 1"

#: The edges as the events make them, in parts: by segment, lateness, and file.
CREATE_PARTS = """
    CREATE TEMPORARY TABLE edge_part (
        actor_id text COLLATE "C", edge_type text COLLATE "C",
        target_type text COLLATE "C", target_id text COLLATE "C",
        segment integer, late boolean, events bigint, weight double precision,
        first_at timestamptz, last_at timestamptz
    ) ON COMMIT DROP
"""
COPY_PARTS = "COPY edge_part FROM STDIN (FORMAT csv)"

#: One pass over the window's partitions.
ADD_LOG = sql.SQL(f"""
    INSERT INTO edge_part
    SELECT event.user_id, rule.edge_type, event.object_type, event.object_id, {_SEGMENT},
           late.id IS NOT NULL, count(*), sum(rule.weight), min(event.created_at), max(event.created_at)
    FROM activity_events AS event
    JOIN (VALUES {{rules}}) AS rule (verb, edge_type, weight) ON rule.verb = event.verb
    LEFT JOIN (SELECT DISTINCT id FROM late_event) AS late ON late.id = event.id
    WHERE {_LOGGED} AND (%(actors)s::text[] IS NULL OR event.user_id = ANY (%(actors)s::text[]))
    GROUP BY 1, 2, 3, 4, 5, 6
""").format(rules=RULES, verbs=FOLDABLE_VERBS)  # noqa: S608

#: Some actors: of events in the window, and of edges wherever they lie, of which `percent` are read.
SAMPLE_ACTORS = """
    (SELECT user_id FROM activity_events
     WHERE created_at > %(since)s AND created_at <= %(watermark)s
     GROUP BY 1 ORDER BY md5(user_id || %(seed)s) LIMIT %(most)s)
    UNION
    (SELECT actor_id FROM interaction_edges TABLESAMPLE SYSTEM (%(percent)s) LIMIT %(most)s)
"""
EDGE_PAGES = """
    SELECT pg_relation_size('interaction_edges') / current_setting('block_size')::integer
"""

#: Live edges, and those that began before the window: primary key for some actors, else one pass.
COUNT_EDGES = """
    SELECT count(*), count(*) FILTER (WHERE first_at <= %(since)s)
    FROM interaction_edges
    WHERE %(actors)s::text[] IS NULL OR actor_id = ANY (%(actors)s::text[])
"""

#: What the events of the segments from `from_segment` on say beside the live edges, a row a difference. Late
#: events may be in an edge or not: between `events` and `most_events` everything is right, and likewise for
#: the others. An edge that began at or before `since` holds at least those events, and the last of them.
#: Users whom an erasure is taking out, and edges to them, are passed over.
DIFFERENCES = """
    WITH expected AS (
        SELECT actor_id, edge_type, target_type, target_id,
               coalesce(sum(events) FILTER (WHERE NOT late), 0)::bigint AS events,
               sum(events)::bigint AS most_events,
               coalesce(sum(weight) FILTER (WHERE NOT late), 0) AS weight, sum(weight) AS most_weight,
               min(first_at) FILTER (WHERE NOT late) AS first_at, min(first_at) AS earliest_at,
               max(last_at) FILTER (WHERE NOT late) AS last_at, max(last_at) AS latest_at
        FROM edge_part WHERE segment >= %(from_segment)s
        GROUP BY actor_id, edge_type, target_type, target_id
    ), live AS (
        SELECT *, first_at > %(since)s AS whole FROM interaction_edges
        WHERE %(actors)s::text[] IS NULL OR actor_id = ANY (%(actors)s::text[])
    )
    SELECT difference.kind, actor_id, edge_type, target_type, target_id,
           difference.expected, difference.found
    FROM expected FULL JOIN live USING (actor_id, edge_type, target_type, target_id)
    CROSS JOIN LATERAL (VALUES
        ('missing', live.actor_id IS NULL AND expected.events > 0,
         expected.events::text, NULL),
        ('surplus', expected.actor_id IS NULL AND (live.whole OR live.last_at > %(since)s),
         NULL, live.event_count::text),
        ('weight', live.weight < expected.weight OR live.whole AND live.weight > expected.most_weight,
         expected.weight::text, live.weight::text),
        ('event_count',
         live.event_count < expected.events OR live.whole AND live.event_count > expected.most_events,
         expected.events::text, live.event_count::text),
        ('first_at',
         live.whole AND (live.first_at < expected.earliest_at OR live.first_at > expected.first_at),
         coalesce(expected.first_at, expected.earliest_at)::text, live.first_at::text),
        ('last_at', live.last_at < expected.last_at
         OR live.last_at > expected.latest_at AND (live.whole OR live.last_at > %(since)s),
         coalesce(expected.last_at, expected.latest_at)::text, live.last_at::text)
    ) AS difference (kind, differs, expected, found)
    WHERE difference.differs
      AND actor_id <> ALL (%(leaving)s::text[])
      AND NOT (target_type = 'user' AND target_id = ANY (%(leaving)s::text[]))
    ORDER BY actor_id, edge_type, target_type, target_id
"""

#: Users whom an erasure is taking out of log, edges and files, and when one that is done ended. To be read
#: after the files, outside the snapshot.
ERASURES = """
    SELECT subject, finished_at IS NOT NULL FROM erasure
    WHERE kind = 'user' AND (finished_at IS NULL OR finished_at >= %(begun)s)
"""
