"""The statements of last activity. Each is a transaction of its own: the connection is in autocommit."""

from __future__ import annotations

from psycopg import sql

from activity_platform.last_activity.periods import FIRST, OVER, UPPER_EDGES

#: Row ids of users by what messages call them. Index: unique (line_oa_id, line_user_id).
FIND_USERS = sql.SQL("""
SELECT found.line_oa_id, found.organization_id, found.line_user_id, found.id
FROM unnest(%(line_oa_ids)b::bigint[], %(organization_ids)b::bigint[], %(line_user_ids)b::text[])
    AS asked (line_oa_id, organization_id, line_user_id)
JOIN line_user AS found
    ON found.line_oa_id = asked.line_oa_id
    AND found.line_user_id = asked.line_user_id
    AND found.organization_id = asked.organization_id
""")

_PERIOD = sql.SQL("CASE WHEN quiet_since IS NULL THEN {first} {edges} ELSE {over} END").format(
    first=sql.Literal(FIRST),
    over=sql.Literal(OVER),
    edges=sql.SQL(" ").join(
        sql.SQL("WHEN at - quiet_since <= {upper} THEN {name}").format(
            upper=sql.Literal(upper), name=sql.Literal(name)
        )
        for name, upper in UPPER_EDGES
    ),
)

#: Moves users of one OA forward and returns every row that was found: whose it is, the date it had before,
#: and its four values afterwards. Index: primary key (line_oa_id, id). Rows are locked in key order, so that
#: two of these never wait for each other in a circle. A date that isn't finite counts as none. `previous_at`
#: is the activity before the last one in the batch; the one on the row counts if it is later.
MOVE_USERS = sql.SQL("""
WITH locked AS MATERIALIZED (
    SELECT held.id, held.organization_id, held.line_user_id, asked.at, asked.previous_at,
        asked.type, asked.status, held.last_activity_type, held.last_activity_status,
        held.last_activity_period,
        CASE WHEN isfinite(held.last_activity_date) THEN held.last_activity_date END AS before
    FROM unnest(%(ids)b::bigint[], %(organization_ids)b::bigint[], %(line_user_ids)b::text[],
            %(at)b::timestamptz[], %(previous_at)b::timestamptz[], %(types)b::text[], %(statuses)b::text[])
        AS asked (id, organization_id, line_user_id, at, previous_at, type, status)
    JOIN line_user AS held
        ON held.line_oa_id = %(line_oa_id)s
        AND held.id = asked.id
        AND held.organization_id = asked.organization_id
        AND held.line_user_id = asked.line_user_id
    ORDER BY held.id
    FOR NO KEY UPDATE OF held
), forward AS (
    SELECT *, greatest(previous_at, before) AS quiet_since
    FROM locked
    WHERE before IS NULL OR before < at
), moved AS (
    UPDATE line_user
    SET last_activity_type = forward.type,
        last_activity_status = forward.status,
        last_activity_period = {period},
        last_activity_date = forward.at
    FROM forward
    WHERE line_user.line_oa_id = %(line_oa_id)s AND line_user.id = forward.id
    RETURNING forward.organization_id, forward.line_user_id, forward.before,
        forward.type, forward.status, line_user.last_activity_period, forward.at
)
SELECT * FROM moved
UNION ALL
SELECT organization_id, line_user_id, before,
    last_activity_type, last_activity_status, last_activity_period, before
FROM locked
WHERE NOT (before IS NULL OR before < at)
""").format(period=_PERIOD)
