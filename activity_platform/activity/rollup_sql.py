"""The fold's statements. Bounds of a window are exclusive below and inclusive above.

A window touches the partitions that overlap it and DEFAULT; within one, the BRIN index on created_at finds
the blocks. An event counts when its verb has an edge rule.
"""

from __future__ import annotations

from psycopg import sql

from activity_platform.activity.vocabulary import EDGE_RULES

STATE = "interaction_edges"
#: The slice in which erasures note, negative, what edges held of months that are gone.
ERASED = "interaction_edges:erased"

RULES = sql.SQL(", ").join(
    sql.SQL("({}, {}, {}::float8)").format(str(verb), str(rule.edge_type), float(rule.weight))
    for verb, rule in EDGE_RULES.items()
)
# PostgreSQL looks a value up by hash in a list of nine or more constants, and compares it with each of fewer:
# 0.26 s against 0.40 s for two million rows. The empty text, which no verb is, makes the list long enough.
FOLDABLE_VERBS = sql.SQL(", ").join([*(sql.Literal(str(verb)) for verb in EDGE_RULES), sql.Literal("")])

#: The state's row is the fold's lock; a second fold finds none and is busy. Primary key.
LOCK_STATE = """
    SELECT watermark FROM activity_rollup_state WHERE name = %(name)s FOR UPDATE SKIP LOCKED
"""

#: Primary key.
READ_STATE = """
    SELECT watermark FROM activity_rollup_state WHERE name = %(name)s
"""

#: Primary key.
ADVANCE = """
    UPDATE activity_rollup_state SET watermark = %(upper)s, updated_at = clock_timestamp()
    WHERE name = %(name)s
"""

#: Primary key. A watermark that was set back by hand folds into the same slice again.
RECORD_SLICE = """
    INSERT INTO activity_rollup_slice AS slice (name, lower, upper, events, edges)
    VALUES (%(name)s, %(lower)s, %(upper)s, %(events)s, %(edges)s)
    ON CONFLICT (name, upper) DO UPDATE
    SET events = slice.events + excluded.events, edges = greatest(slice.edges, excluded.edges)
"""

_WRITERS = """
    FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND pg_partition_root(relation::regclass) = 'activity_events'::regclass
"""

#: Who may still write to the log, from memory of the server; no table is read. Every INSERT, UPDATE, DELETE
#: and COPY holds a RowExclusiveLock, also one that names a partition. A start is hidden from a role without
#: pg_read_all_stats, and not kept where track_activities is off.
OPEN_WRITERS = f"""
    SELECT statement_timestamp() AS now,
           min(activity.xact_start) AS oldest_start,
           count(*) FILTER (
               WHERE activity.pid IS NOT NULL AND activity.xact_start IS NULL
                 AND coalesce(activity.state, 'disabled') = 'disabled'
           ) AS hidden
    FROM (SELECT DISTINCT pid {_WRITERS} AND pid IS NOT NULL) AS writer
    LEFT JOIN pg_stat_activity AS activity USING (pid)
"""  # noqa: S608

#: Prepared transactions that wrote to the log; they have no process and tell no start.
PREPARED_WRITERS = f"SELECT count(*) {_WRITERS} AND pid IS NULL"

#: How many events of a window fold, counted up to `most` (null: all), and the latest of their stamps.
COUNT_FOLDABLE = sql.SQL("""
    SELECT count(*), max(created_at) FROM (
        SELECT created_at FROM activity_events
        WHERE created_at > %(lower)s AND created_at <= %(upper)s AND verb IN ({verbs})
        LIMIT %(most)s
    ) AS foldable
""").format(verbs=FOLDABLE_VERBS)

#: Adds a window to the edges. Keys are sorted, so that two writers who both sort can't deadlock. Only adds:
#: what an edge already has never shrinks. Conflicts are found by the primary key. The first sort key is an
#: expression, equal to the column, so that groups are sorted and not events: an eighth less work.
FOLD = sql.SQL("""
    INSERT INTO interaction_edges AS edge
        (actor_id, edge_type, target_type, target_id, weight, event_count, first_at, last_at)
    SELECT event.user_id, rule.edge_type, event.object_type, event.object_id,
           sum(rule.weight), count(*), min(event.created_at), max(event.created_at)
    FROM activity_events AS event
    JOIN (VALUES {rules}) AS rule (verb, edge_type, weight) ON rule.verb = event.verb
    WHERE event.created_at > %(lower)s AND event.created_at <= %(upper)s AND event.verb IN ({verbs})
    GROUP BY event.user_id, rule.edge_type, event.object_type, event.object_id
    ORDER BY event.user_id || '', rule.edge_type, event.object_type, event.object_id
    ON CONFLICT (actor_id, edge_type, target_type, target_id) DO UPDATE
    SET weight = edge.weight + excluded.weight,
        event_count = edge.event_count + excluded.event_count,
        first_at = least(edge.first_at, excluded.first_at),
        last_at = greatest(edge.last_at, excluded.last_at)
""").format(rules=RULES, verbs=FOLDABLE_VERBS)

#: Events stamped after the watermark and up to now, counted up to `most`.
COUNT_WAITING = """
    SELECT count(*) FROM (
        SELECT FROM activity_events
        WHERE created_at > %(lower)s AND created_at <= %(upper)s
        LIMIT %(most)s
    ) AS waiting
"""

#: The end of the newest slice that ends at or before `upper`; a date before all others if there is none.
#: Primary key.
SLICE_END_BEFORE = """
    SELECT coalesce(max(upper), '0001-01-02 UTC') FROM activity_rollup_slice
    WHERE name = %(name)s AND upper <= %(upper)s
"""

#: Events that slices within a window say they folded. Primary key.
FOLDED = """
    SELECT coalesce(sum(events), 0)::bigint FROM activity_rollup_slice
    WHERE name = %(name)s AND upper > %(lower)s AND upper <= %(upper)s
"""

#: A slice chosen at random among those that end up to `upper` and whose rows are not dropped yet, from the
#: end of the slice before it. Primary key; the bounds are a few rows of the catalog.
ANY_SLICE = r"""
    SELECT (SELECT coalesce(max(upper), '0001-01-02 UTC') FROM activity_rollup_slice AS before
            WHERE before.name = slice.name AND before.upper < slice.upper), slice.upper
    FROM activity_rollup_slice AS slice
    CROSS JOIN (
        SELECT greatest(min(lower), (
            SELECT min((regexp_match(pg_get_expr(child.relpartbound, child.oid), $$FROM \('([^']+)'\)$$))[1]
                       ::timestamptz)
            FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
            WHERE inhparent = 'activity_events'::regclass)) AS first
        FROM activity_rollup_slice WHERE name = %(name)s
    ) AS kept
    WHERE slice.name = %(name)s AND slice.upper <= %(upper)s
      AND slice.upper >= kept.first + %(where)s * (%(upper)s::timestamptz - kept.first)
    ORDER BY slice.upper
    LIMIT 1
"""

#: The window's events by edge beside what the edges hold: an edge that began in the window holds those and
#: no more, an older one at least those. Edges by primary key.
COMPARE_EDGES = sql.SQL("""
    SELECT count(*), coalesce(sum(logged.events), 0)::bigint,
           coalesce(sum(greatest(0, logged.events - coalesce(edge.event_count, 0))), 0)::bigint AS missing,
           coalesce(sum(greatest(0, edge.event_count - logged.events))
                    FILTER (WHERE edge.first_at > %(lower)s), 0)::bigint AS extra
    FROM (
        SELECT event.user_id, rule.edge_type, event.object_type, event.object_id, count(*) AS events
        FROM activity_events AS event
        JOIN (VALUES {rules}) AS rule (verb, edge_type) ON rule.verb = event.verb
        WHERE event.created_at > %(lower)s AND event.created_at <= %(upper)s
        GROUP BY event.user_id, rule.edge_type, event.object_type, event.object_id
    ) AS logged
    LEFT JOIN interaction_edges AS edge
        ON (edge.actor_id, edge.edge_type, edge.target_type, edge.target_id)
         = (logged.user_id, logged.edge_type, logged.object_type, logged.object_id)
""").format(
    rules=sql.SQL(", ").join(
        sql.SQL("({}, {})").format(str(verb), str(rule.edge_type)) for verb, rule in EDGE_RULES.items()
    )
)
