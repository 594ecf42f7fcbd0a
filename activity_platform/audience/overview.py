"""What people look at: a few members, runs that fell silent, and whether the counts agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from activity_platform.gateways.line_api import masked

SAMPLE = 5
#: A worker that has not beaten for so long is dead: it beats every few seconds.
DEAD_AFTER = timedelta(minutes=2)
CHECKED_AUDIENCES = 100

# By the GIN index line_user_audience_ids.
_SAMPLE = """
SELECT line_user_id FROM line_user
WHERE line_oa_id = (SELECT line_oa_id FROM audience WHERE id = %(audience_id)s)
    AND audience_ids @> ARRAY[%(audience_id)s]::bigint[]
LIMIT %(most)s
"""
# The last sign of life of the message that each run works on; a run without one never got as far.
_ALIVE = """
SELECT i.run_id FROM audience_import i
JOIN message_attempt t USING (queue, message_id)
WHERE i.run_id = ANY(%s) AND greatest(t.heartbeat_at, t.last_attempt_at) >= %s
"""
# The newest imports by primary key, the members of each audience by the GIN index. What is under way is not
# counted: its rows are ahead of its info.
_DISAGREEING = """
SELECT a.id, (a.info->>'members')::bigint, u.members
FROM (
    SELECT DISTINCT audience_id FROM (
        SELECT audience_id FROM audience_import ORDER BY id DESC LIMIT %s
    ) AS newest
) AS i
JOIN audience a ON a.id = i.audience_id
CROSS JOIN LATERAL (
    SELECT count(*) AS members FROM line_user u
    WHERE u.line_oa_id = a.line_oa_id AND u.audience_ids @> ARRAY[a.id]
) AS u
WHERE a.info->>'members' IS NOT NULL AND (a.info->>'members')::bigint <> u.members
    AND NOT EXISTS (SELECT FROM audience_import r WHERE r.audience_id = a.id AND r.status = 'running')
ORDER BY a.id
"""


@dataclass(frozen=True)
class Disagreement:
    """An audience whose `info.members` is not the number of its members."""

    audience_id: int
    told: int
    members: int


def sample_members(connection: psycopg.Connection, audience_id: int) -> list[str]:
    """A few members, masked."""
    rows = connection.execute(_SAMPLE, {"audience_id": audience_id, "most": SAMPLE})
    return [masked(row[0]) for row in rows]


def silent_runs(connection: psycopg.Connection, run_ids: Sequence[str], *, now: datetime) -> list[str]:
    """Those of the runs, all started at least `DEAD_AFTER` ago, whose worker gives no sign of life."""
    alive = {row[0] for row in connection.execute(_ALIVE, [list(run_ids), now - DEAD_AFTER])}
    return [run_id for run_id in run_ids if run_id not in alive]


def disagreements(connection: psycopg.Connection) -> list[Disagreement]:
    """Audiences of the newest imports that break the rule rows = `info.members`."""
    return [Disagreement(*row) for row in connection.execute(_DISAGREEING, [CHECKED_AUDIENCES])]
