"""The history of commands: one row of `audience_import` a message, from its first attempt to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg
from psycopg.rows import class_row, dict_row, scalar_row
from psycopg.types.json import Jsonb

from activity_platform.audience.attempts import end_attempt, mark_processed
from activity_platform.audience.messages import AudienceMessage, Command
from activity_platform.audience.reasons import CommandFailed, Failure, Reason
from activity_platform.gateways.queue import Entry

#: Keys of `audience_import.stats` that are there only while a run works.
PROGRESS_KEYS = ["step", "done", "of"]

# By the unique key (queue, message_id). Beside a stored plan its statistics stay: who resumes it needs them.
_START = """
INSERT INTO audience_import AS known
    (audience_id, command, queue, message_id, status, source_path, run_id, started_at)
VALUES
    (%(audience_id)s, %(command)s, %(queue)s, %(message_id)s, 'running', %(source_path)s, %(run_id)s, %(now)s)
ON CONFLICT (queue, message_id) DO UPDATE SET
    status = 'running', source_path = EXCLUDED.source_path, run_id = EXCLUDED.run_id, finished_at = NULL,
    stats = CASE WHEN EXISTS (SELECT FROM audience_change WHERE import_id = known.id)
        THEN known.stats ELSE '{}' END
WHERE known.audience_id = EXCLUDED.audience_id AND known.command = EXCLUDED.command
RETURNING id
"""
# The rest by the primary key, but where something else is said.
_WORK = """
SELECT
    i.id AS import_id, i.command, i.queue, i.message_id, i.audience_id, i.source_path,
    a.line_oa_id, a.organization_id, coalesce(t.attempts, 0) AS attempt,
    EXISTS (SELECT FROM audience_change c WHERE c.import_id = i.id) AS has_plan
FROM audience_import i
JOIN audience a ON a.id = i.audience_id
LEFT JOIN message_attempt t USING (queue, message_id)
"""
_FIND_WORK = f"{_WORK} WHERE i.id = %s"
_FIND_WORK_OF = f"{_WORK} WHERE i.queue = %s AND i.message_id = %s"
# By audience_import_audience.
_FIND_ABANDONED = f"""
{_WORK} WHERE i.audience_id = %s AND i.id <> %s
    AND EXISTS (SELECT FROM audience_change c WHERE c.import_id = i.id)
ORDER BY i.id
"""
_FIND_MESSAGE_ID = "SELECT message_id FROM audience_import WHERE id = %s"
_READ_STATS = "SELECT stats FROM audience_import WHERE id = %s"
_ADD_STATS = """
UPDATE audience_import SET stats = stats || %(stats)s WHERE id = %(import_id)s AND status = 'running'
"""
_NOTE_REJECTS = "UPDATE audience_import SET rejects_path = %s WHERE id = %s"
_NOTE_REASON = "UPDATE audience_import SET reason = %s WHERE id = %s"
_END = """
UPDATE audience_import SET
    status = %(status)s, reason = %(reason)s, result_path = %(result_path)s, finished_at = %(now)s,
    stats = (stats - %(progress_keys)s::text[]) || %(stats)s
WHERE id = %(import_id)s
"""
_RECORD = """
SELECT
    id, audience_id, command, queue, message_id, status, reason, stats,
    source_path, result_path, rejects_path, run_id, started_at, finished_at
FROM audience_import
"""
_FIND_IMPORT = f"{_RECORD} WHERE id = %s"
_RECENT = f"{_RECORD} ORDER BY id DESC LIMIT %s"


@dataclass(frozen=True)
class Work:
    """A command under way, as its steps need it."""

    import_id: int
    command: Command
    queue: str
    message_id: str
    audience_id: int
    source_path: str | None
    line_oa_id: int
    organization_id: int
    attempt: int
    has_plan: bool


@dataclass(frozen=True)
class ImportRecord:
    """One row of the history."""

    id: int
    audience_id: int
    command: str
    queue: str
    message_id: str
    status: str
    reason: str | None
    stats: Mapping[str, Any]
    source_path: str | None
    result_path: str | None
    rejects_path: str | None
    run_id: str | None
    started_at: datetime
    finished_at: datetime | None


def start_import(
    connection: psycopg.Connection,
    entry: Entry,
    message: AudienceMessage,
    run_id: str | None,
    *,
    now: datetime,
) -> int:
    """The id of the message's row, which is running from now on.

    Raises `CommandFailed` if its message id is that of another command, which did not end well.
    """
    values = {
        "audience_id": message.audience_id,
        "command": message.command.value,
        "queue": entry.queue,
        "message_id": entry.message_id,
        "source_path": message.file_path,
        "run_id": run_id,
        "now": now,
    }
    with connection.cursor(row_factory=scalar_row) as cursor:
        import_id = cursor.execute(_START, values).fetchone()
    if import_id is None:
        raise CommandFailed(Reason.BAD_PAYLOAD, "its message_id belongs to another command on its queue")
    return int(import_id)


def find_work(connection: psycopg.Connection, import_id: int) -> Work:
    """The command of that import. Raises `CommandFailed` when its audience is gone."""
    for work in _works(connection, _FIND_WORK, import_id):
        return work
    raise CommandFailed(Reason.UNKNOWN_AUDIENCE, "the audience is gone while its import runs")


def find_work_of(connection: psycopg.Connection, queue: str, message_id: str) -> Work | None:
    """The command of a message, if it got as far as the history."""
    return next(iter(_works(connection, _FIND_WORK_OF, queue, message_id)), None)


def find_abandoned(connection: psycopg.Connection, work: Work) -> list[Work]:
    """Other commands of the audience that left a stored plan. The caller has the audience's lock."""
    return _works(connection, _FIND_ABANDONED, work.audience_id, work.import_id)


def find_message_id(connection: psycopg.Connection, import_id: int) -> str:
    """The message of an import."""
    (row,) = connection.execute(_FIND_MESSAGE_ID, [import_id])
    return str(row[0])


def read_stats(connection: psycopg.Connection, import_id: int) -> dict[str, Any]:
    """The statistics collected so far."""
    row = connection.execute(_READ_STATS, [import_id]).fetchone()
    return dict(row[0]) if row else {}


def add_stats(connection: psycopg.Connection, import_id: int, stats: Mapping[str, Any]) -> None:
    """Sets those keys of a running import's statistics; those of an ended one stay as they are."""
    connection.execute(_ADD_STATS, {"stats": Jsonb(stats), "import_id": import_id})


def note_rejects(connection: psycopg.Connection, import_id: int, path: str) -> None:
    """The file of rejected entries is written."""
    connection.execute(_NOTE_REJECTS, [path, import_id])


def record_success(
    connection: psycopg.Connection,
    work: Work,
    *,
    status: str = "done",
    reason: Reason | None = None,
    result_path: str | None = None,
    stats: Mapping[str, Any],
    now: datetime,
) -> None:
    """The message is done. To be called in the transaction of its last effect.

    Raises `psycopg.errors.UniqueViolation` if it was done before.
    """
    mark_processed(connection, work.queue, work.message_id, now=now)
    _end(connection, work.import_id, status, reason, now, result_path=result_path, stats=stats)
    end_attempt(connection, work.queue, work.message_id, None, now=now)


def record_failure(
    connection: psycopg.Connection, import_id: int, failure: Failure, *, final: bool, now: datetime
) -> None:
    """The attempt failed; with `final` there is no further one and the import has failed."""
    if final:
        _end(connection, import_id, "failed", failure.reason, now)
    else:
        connection.execute(_NOTE_REASON, [failure.reason, import_id])


def find_import(connection: psycopg.Connection, import_id: int) -> ImportRecord:
    """The row of that id, which must exist."""
    with connection.cursor(row_factory=class_row(ImportRecord)) as cursor:
        (record,) = cursor.execute(_FIND_IMPORT, [import_id])
    return record


def recent_imports(connection: psycopg.Connection, limit: int = 50) -> list[ImportRecord]:
    """The newest rows, newest first."""
    with connection.cursor(row_factory=class_row(ImportRecord)) as cursor:
        return cursor.execute(_RECENT, [limit]).fetchall()


def _works(connection: psycopg.Connection, statement: LiteralString, *keys: object) -> list[Work]:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(statement, keys)
        return [Work(**row | {"command": Command(row["command"])}) for row in cursor]


def _end(
    connection: psycopg.Connection,
    import_id: int,
    status: str,
    reason: Reason | None,
    now: datetime,
    *,
    result_path: str | None = None,
    stats: Mapping[str, Any] | None = None,
) -> None:
    values = {
        "import_id": import_id,
        "status": status,
        "reason": reason,
        "now": now,
        "result_path": result_path,
        "stats": Jsonb(stats or {}),
        "progress_keys": PROGRESS_KEYS,
    }
    connection.execute(_END, values)
