"""Who is in an audience: the exact change is planned and stored, applied in short steps, and finished in one.

    plan    one statement finds who comes and who leaves, and stores it in `audience_change`
    apply   chunks in key order, each its own transaction: a long one would hold row locks that the
            last-activity updates wait for. A chunk that is applied twice changes nothing the second time
    finish  one transaction for everything that says that it happened

Whoever resumes after a crash applies the stored plan from its start. All of it goes through the connection
that holds the audience's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import stamina
from psycopg.types.json import Jsonb

from activity_platform.audience import imports
from activity_platform.audience.imports import Work
from activity_platform.audience.interfaces import MembershipChange, TriggerEvaluator, UserCache
from activity_platform.audience.messages import Command
from activity_platform.audience.reasons import Reason
from activity_platform.gateways import postgres

CHUNK_ROWS = 5_000

# One snapshot for all of it: what others write meanwhile is either before the whole plan or after it.
# The users that the file names are found by a hash join or the unique key (line_oa_id, line_user_id),
# the members by the GIN index line_user_audience_ids.
_PLAN = """
WITH named AS MATERIALIZED (
    SELECT u.id, u.audience_ids @> ARRAY[%(audience_id)s]::bigint[] AS is_member
    FROM named_id n
    JOIN line_user u ON u.line_oa_id = %(line_oa_id)s AND u.line_user_id = n.line_user_id
), planned AS (
    INSERT INTO audience_change (import_id, user_id, change)
    SELECT %(import_id)s, id, change FROM ({changes}) AS changes (id, change) ORDER BY id
    RETURNING change
)
SELECT
    (SELECT count(*) FROM named),
    count(*) FILTER (WHERE change = 'added'),
    count(*) FILTER (WHERE change = 'removed')
FROM planned
"""
_NAMED_COME = "SELECT id, 'added' FROM named WHERE NOT is_member"
_NAMED_LEAVE = "SELECT id, 'removed' FROM named WHERE is_member"
_MEMBERS = """
    SELECT u.id, 'removed' FROM line_user u
    WHERE u.line_oa_id = %(line_oa_id)s AND u.audience_ids @> ARRAY[%(audience_id)s]::bigint[]
"""
_OTHERS_LEAVE = f"{_MEMBERS} AND NOT EXISTS (SELECT FROM named WHERE named.id = u.id)"
_CHANGES = {
    Command.CREATE: f"{_NAMED_COME} UNION ALL {_OTHERS_LEAVE}",
    Command.UPDATE: f"{_NAMED_COME} UNION ALL {_OTHERS_LEAVE}",
    Command.MOOKEPT_ADD: _NAMED_COME,
    Command.MOOKEPT_REMOVE: _NAMED_LEAVE,
    Command.DELETE: _MEMBERS,
}
# By the primary key of audience_change: the last key of each chunk and how many changes are behind it.
_CHUNK_ENDS = """
SELECT user_id, place FROM (
    SELECT user_id, row_number() OVER (ORDER BY user_id) AS place, count(*) OVER () AS size
    FROM audience_change WHERE import_id = %(import_id)s
) AS change
WHERE place %% %(chunk)s = 0 OR place = size ORDER BY user_id
"""
# Both by the primary keys (import_id, user_id) and (line_oa_id, id), row after row in their order: so does
# every writer of line_user lock, and no two of them deadlock.
_APPLY_CHUNK = """
UPDATE line_user u SET
    audience_ids = CASE WHEN c.change = %(enters)s THEN array_append(u.audience_ids, %(audience_id)s)
        ELSE array_remove(u.audience_ids, %(audience_id)s) END,
    updated_at = clock_timestamp()
FROM (
    SELECT user_id, change FROM audience_change
    WHERE import_id = %(import_id)s AND user_id > %(after)s AND user_id <= %(upto)s ORDER BY user_id
) AS c
WHERE u.line_oa_id = %(line_oa_id)s AND u.id = c.user_id
    AND (u.audience_ids @> ARRAY[%(audience_id)s]::bigint[]) <> (c.change = %(enters)s)
RETURNING u.line_user_id
"""
_USERS_OF_CHUNK = """
SELECT u.line_user_id FROM audience_change c
JOIN line_user u ON u.line_oa_id = %(line_oa_id)s AND u.id = c.user_id
WHERE c.import_id = %(import_id)s AND c.user_id > %(after)s AND c.user_id <= %(upto)s
"""
# Otherwise a chunk's join may be planned as a scan of all users. And a chunk need not wait for the disk: one
# that a crash of the server loses is applied again from the plan, and the finish waits for all of them.
_CHUNK_SETTINGS = """
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; SET synchronous_commit = off
"""
_USUAL_SETTINGS = """
RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_seqscan; RESET synchronous_commit
"""
# By the GIN index line_user_audience_ids. COLLATE "C": the file ascends byte by byte.
_READ_MEMBERS = """
COPY (
    SELECT line_user_id FROM line_user
    WHERE line_oa_id = %s AND audience_ids @> ARRAY[%s]::bigint[]
    ORDER BY line_user_id COLLATE "C"
) TO STDOUT
"""
# Merged here and not by the caller: another writer's keys, set meanwhile, stay. SQL NULL and what is no
# object count as empty.
_FINISH_AUDIENCE = """
UPDATE audience SET
    info = CASE WHEN jsonb_typeof(info) = 'object' THEN info ELSE '{}' END || %(info)s,
    deleted_at = CASE WHEN %(deletes)s THEN %(now)s END,
    updated_at = %(now)s
WHERE id = %(audience_id)s AND deleted_at IS NULL
"""
_DROP_PLAN = "DELETE FROM audience_change WHERE import_id = %s"


@dataclass(frozen=True)
class Plan:
    """`named`: users of the file that are known; `added` and `removed`: whose membership changes."""

    named: int
    added: int
    removed: int


class AudienceGone(Exception):
    """The audience was deleted while the command ran."""


def make_plan(connection: psycopg.Connection, work: Work) -> Plan:
    """Stores who comes and who leaves, from the staged ids (`users.stage_ids`) and the table."""
    statement = _PLAN.format(changes=_CHANGES[work.command])
    (row,) = connection.execute(statement, _keys(work))
    return Plan(*row)


def apply_plan(
    connection: psycopg.Connection, work: Work, cache: UserCache, *, undo: bool = False
) -> Iterator[int]:
    """Carries the stored plan out, or back with `undo`; yields how many changes are behind it, a chunk each.

    Cached copies of the changed users are dropped after the commit of each chunk.
    """
    keys = _keys(work) | {"enters": "removed" if undo else "added", "chunk": CHUNK_ROWS}
    ends = [(0, 0), *connection.execute(_CHUNK_ENDS, keys)]
    connection.execute(_CHUNK_SETTINGS)
    for (after, behind), (upto, place) in pairwise(ends):
        chunk = keys | {"after": after, "upto": upto}
        changed = _apply_chunk(connection, chunk)
        if len(changed) < place - behind:
            # Somebody applied it before, and may have been killed before the copies were dropped.
            changed = _users(connection, _USERS_OF_CHUNK, chunk)
        cache.forget(changed)
        yield place
    connection.execute(_USUAL_SETTINGS)


@stamina.retry(on=postgres.RETRYABLE, attempts=10, wait_initial=0.05, wait_max=1.0)
def _apply_chunk(connection: psycopg.Connection, chunk: Mapping[str, Any]) -> list[str]:
    return _users(connection, _APPLY_CHUNK, chunk)


def _users(connection: psycopg.Connection, statement: LiteralString, chunk: Mapping[str, Any]) -> list[str]:
    return [row[0] for row in connection.execute(statement, chunk)]


def read_members(connection: psycopg.Connection, line_oa_id: int, audience_id: int) -> Iterator[str]:
    """The LINE ids of the members as they are now, in ascending order of bytes."""
    with connection.cursor() as cursor, cursor.copy(_READ_MEMBERS, [line_oa_id, audience_id]) as copy:
        for row in copy:
            yield bytes(row).decode().removesuffix("\n")


def finish(
    connection: psycopg.Connection,
    work: Work,
    *,
    evaluate: TriggerEvaluator,
    info: Mapping[str, Any],
    stats: Mapping[str, Any],
    result_path: str,
    status: str,
    reason: Reason | None,
    now: datetime,
) -> int:
    """Everything that says that the command happened, in one transaction; returns the number of firings.

    Raises `AudienceGone`, with nothing done, when the audience was deleted meanwhile.
    """
    with connection.transaction():
        firings = evaluate(connection, _change(work), now=now)
        values = _keys(work) | {
            "info": Jsonb(info),
            "deletes": work.command is Command.DELETE,
            "now": now,
        }
        if connection.execute(_FINISH_AUDIENCE, values).rowcount == 0:
            raise AudienceGone
        connection.execute(_DROP_PLAN, [work.import_id])
        imports.record_success(
            connection,
            work,
            status=status,
            reason=reason,
            result_path=result_path,
            stats={**stats, "firings": firings},
            now=now,
        )
    return firings


def undo_plan(connection: psycopg.Connection, work: Work, cache: UserCache) -> None:
    """Makes the membership what it was before the stored plan, and drops the plan. Without one it does
    nothing. If it is cut short, it may be called again."""
    for _ in apply_plan(connection, work, cache, undo=True):
        pass
    connection.execute(_DROP_PLAN, [work.import_id])


def _keys(work: Work) -> dict[str, Any]:
    return {
        "import_id": work.import_id,
        "audience_id": work.audience_id,
        "line_oa_id": work.line_oa_id,
    }


def _change(work: Work) -> MembershipChange:
    return MembershipChange(
        work.import_id,
        work.audience_id,
        work.line_oa_id,
        work.organization_id,
        work.queue,
        work.message_id,
    )
