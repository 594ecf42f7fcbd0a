"""The erasure's statements. Their bind `user` is the user's id, `fold` and `erased` name the slices."""

from __future__ import annotations

from psycopg import sql

from activity_platform.activity.rollup_sql import FOLDABLE_VERBS, RULES
from activity_platform.activity.vocabulary import ObjectType

#: Events of the user, and those of others that are about the user.
EVENTS_OF_USER = sql.SQL("(user_id = %(user)s OR (object_type = {user} AND object_id = %(user)s))").format(
    user=str(ObjectType.USER)
)
EDGES_TO_USER = sql.SQL("(target_type = {user} AND target_id = %(user)s)").format(user=str(ObjectType.USER))

#: One eraser or one maintenance of the months at a time. The number is that of `partition_sql`.
TRY_LOCK_MAINTENANCE = "SELECT pg_try_advisory_lock(6301401881)"
UNLOCK_MAINTENANCE = "SELECT pg_advisory_unlock(6301401881)"

#: The fold's lock, waited for: afterwards no slice is in flight. Primary key.
LOCK_STATE = "SELECT watermark FROM activity_rollup_state WHERE name = %(fold)s FOR UPDATE"

#: The log's tables, DEFAULT among them, and how many blocks each has. By the indexes of the catalog.
LEAVES = """
    SELECT namespace.nspname, child.relname,
           pg_relation_size(child.oid) / current_setting('block_size')::integer
    FROM pg_partition_tree('activity_events'::regclass) AS leaf
    JOIN pg_class AS child ON child.oid = leaf.relid
    JOIN pg_namespace AS namespace ON namespace.oid = child.relnamespace
    WHERE leaf.isleaf ORDER BY leaf.relid
"""
EDGE_BLOCKS = """
    SELECT pg_relation_size('interaction_edges') / current_setting('block_size')::integer
"""

#: Places of the user's events in some blocks of a table, found by reading these (TID range scan): no index
#: knows whose an event is.
_FIND_EVENTS = sql.SQL("""
    SELECT ctid::text FROM {table}
    WHERE ctid >= %(first)s::tid AND ctid < %(end)s::tid AND {theirs}
""")

#: Places of the user's events in a window, by the BRIN index on created_at.
FIND_FOLDED_SINCE = sql.SQL("""
    SELECT namespace.nspname, child.relname, array_agg(event.ctid::text)
    FROM activity_events AS event
    JOIN pg_class AS child ON child.oid = event.tableoid
    JOIN pg_namespace AS namespace ON namespace.oid = child.relnamespace
    WHERE created_at > %(lower)s AND created_at <= %(upper)s AND {theirs}
    GROUP BY 1, 2
""").format(theirs=EVENTS_OF_USER)

#: Which of the events at their places came late, so that no edge holds them: a slice folded the first of the
#: events in its window by id, as many as it says. Slices by primary key; only the windows of slices with an
#: event of the user are counted, by the BRIN index on created_at.
_FIND_LATE = sql.SQL("""
    WITH theirs AS MATERIALIZED (
        SELECT event.id, slice.lower, slice.upper, slice.events
        FROM {table} AS event
        CROSS JOIN LATERAL ({slice}) AS slice
        WHERE event.ctid = ANY (%(places)s::text[]::tid[]) AND event.verb IN ({verbs})
          AND slice.lower < event.created_at
    ), crowded AS MATERIALIZED (
        SELECT * FROM (SELECT DISTINCT lower, upper, events FROM theirs) AS slice
        WHERE events < (
            SELECT count(*) FROM activity_events AS logged
            WHERE logged.created_at > lower AND logged.created_at <= upper AND logged.verb IN ({verbs}))
    ), placed AS (
        SELECT logged.id, crowded.events,
               row_number() OVER (PARTITION BY crowded.upper ORDER BY logged.id) AS place
        FROM crowded CROSS JOIN LATERAL (
            SELECT id FROM activity_events
            WHERE created_at > crowded.lower AND created_at <= crowded.upper AND verb IN ({verbs})
        ) AS logged
    )
    SELECT id FROM placed WHERE place > events AND id IN (SELECT id FROM theirs)
""")

#: The slice in whose window an event may lie.
_SLICE_OF_EVENT = sql.SQL("""
    SELECT lower, upper, events FROM activity_rollup_slice
    WHERE name = %(fold)s AND upper >= event.created_at ORDER BY upper LIMIT 1
""")

#: Deletes events at their places and takes from edges and slices what the fold had added of them; says how
#: many events it deleted, how many it took from slices, and how many from edges. Everything is found by place
#: or primary key. Under the state's lock.
_ERASE_EVENTS = sql.SQL("""
    WITH event AS (
        DELETE FROM {table} WHERE ctid = ANY (%(places)s::text[]::tid[]) AND {theirs}
        RETURNING id, user_id, verb, object_type, object_id, created_at
    ), folded AS (
        SELECT event.user_id, rule.edge_type, event.object_type, event.object_id, rule.weight, slice.upper
        FROM event
        JOIN (VALUES {rules}) AS rule (verb, edge_type, weight) ON rule.verb = event.verb
        CROSS JOIN LATERAL ({slice}) AS slice
        WHERE event.created_at <= %(watermark)s AND slice.lower < event.created_at
          AND event.id <> ALL (%(late)s::bigint[])
    ), held AS (
        SELECT edge.actor_id, edge.edge_type, edge.target_type, edge.target_id,
               least(lost.events, edge.event_count) AS events, least(lost.weight, edge.weight) AS weight
        FROM (
            SELECT user_id, edge_type, object_type, object_id, count(*) AS events, sum(weight) AS weight
            FROM folded GROUP BY 1, 2, 3, 4
        ) AS lost
        JOIN interaction_edges AS edge
            ON (edge.actor_id, edge.edge_type, edge.target_type, edge.target_id)
             = (lost.user_id, lost.edge_type, lost.object_type, lost.object_id)
    ), taken AS (
        UPDATE interaction_edges AS edge
        SET event_count = edge.event_count - held.events, weight = edge.weight - held.weight
        FROM held
        WHERE (edge.actor_id, edge.edge_type, edge.target_type, edge.target_id)
            = (held.actor_id, held.edge_type, held.target_type, held.target_id)
        RETURNING held.events
    ), unfolded AS (
        UPDATE activity_rollup_slice AS slice SET events = slice.events - lost.events
        FROM (SELECT upper, count(*) AS events FROM folded GROUP BY upper) AS lost
        WHERE slice.name = %(fold)s AND slice.upper = lost.upper
        RETURNING lost.events
    )
    SELECT (SELECT count(*) FROM event), (SELECT coalesce(sum(events), 0)::bigint FROM unfolded),
           (SELECT coalesce(sum(events), 0)::bigint FROM taken)
""")

#: What edges held of events that are not in the log any more. The slice lies before all others: it counts in
#: the sum over all slices, and in no window that is compared with the log. Primary key.
NOTE_REST = """
    INSERT INTO activity_rollup_slice AS slice (name, lower, upper, events, edges)
    VALUES (%(erased)s, '0001-01-02 UTC', '0001-01-02 UTC', %(events)s, %(edges)s)
    ON CONFLICT (name, upper) DO UPDATE
    SET events = slice.events + excluded.events, edges = slice.edges + excluded.edges
"""

#: By the primary key, which starts with the actor. Under the state's lock.
ERASE_EDGES_OF_ACTOR = """
    WITH gone AS (
        DELETE FROM interaction_edges WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM interaction_edges WHERE actor_id = %(user)s LIMIT %(most)s
        )) RETURNING event_count
    )
    SELECT count(*), coalesce(sum(event_count), 0)::bigint FROM gone
"""

#: Keys of edges to the user in some blocks, found by reading these (TID range scan).
FIND_EDGES_TO_USER = sql.SQL("""
    SELECT actor_id, edge_type FROM interaction_edges
    WHERE ctid >= %(first)s::tid AND ctid < %(end)s::tid AND {pointing}
""").format(pointing=EDGES_TO_USER)

#: By the primary key: a fold may have moved the rows since they were found. Under the state's lock.
ERASE_EDGES_TO_USER = sql.SQL("""
    WITH gone AS (
        DELETE FROM interaction_edges
        USING unnest(%(actors)s::text[], %(edge_types)s::text[]) AS found (actor_id, edge_type)
        WHERE interaction_edges.actor_id = found.actor_id AND interaction_edges.edge_type = found.edge_type
          AND {pointing}
        RETURNING event_count
    )
    SELECT count(*), coalesce(sum(event_count), 0)::bigint FROM gone
""").format(pointing=EDGES_TO_USER)

#: Primary key, which starts with the user.
ERASE_KEYS = """
    DELETE FROM idempotency_key WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM idempotency_key WHERE user_id = %(user)s LIMIT %(most)s
    ))
"""

#: Transactions that have written to the log or to the keys and are still open, from memory of the server. A
#: name is never given to a second transaction; prepared ones have one, too.
OPEN_WRITERS = """
    SELECT DISTINCT virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (relation = 'idempotency_key'::regclass
           OR pg_partition_root(relation::regclass) = 'activity_events'::regclass)
"""

#: Reads both tables; the keys by their primary key.
COUNT_ROWS = sql.SQL("""
    SELECT (SELECT count(*) FROM activity_events WHERE {theirs}),
           (SELECT count(*) FROM interaction_edges WHERE actor_id = %(user)s OR {pointing}),
           (SELECT count(*) FROM idempotency_key WHERE user_id = %(user)s)
""").format(theirs=EVENTS_OF_USER, pointing=EDGES_TO_USER)


def find_events(table: sql.Identifier) -> sql.Composed:
    """Finds the user's events in blocks `first` to before `end` of a table of the log."""
    return _FIND_EVENTS.format(table=table, theirs=EVENTS_OF_USER)


def find_late(table: sql.Identifier) -> sql.Composed:
    """Finds the ids of those events at `places` of a table of the log that no edge holds."""
    return _FIND_LATE.format(table=table, slice=_SLICE_OF_EVENT, verbs=FOLDABLE_VERBS)


def erase_events(table: sql.Identifier) -> sql.Composed:
    """Erases the events at `places` of a table of the log, and what edges hold of them but the `late`."""
    return _ERASE_EVENTS.format(table=table, theirs=EVENTS_OF_USER, rules=RULES, slice=_SLICE_OF_EVENT)
