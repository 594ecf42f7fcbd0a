"""Requests to forget somebody: the rows of `erasure`, which the domains that carry them out share.

    request   names whom, committed before anything is deleted
    add       counts what is gone, in the transaction in which it goes
    finish    clears the names; what, when and how much stay

A request that is pending is carried out again from its start until it is finished: each step finds nothing
where it was done before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from activity_platform.failures import TransientFailure

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.2


class Kind(StrEnum):
    """Whom: a user of the activity log, a LINE user of an official account, or a whole account."""

    USER = "user"
    LINE_USER = "line_user"
    LINE_OA = "line_oa"


@dataclass(frozen=True)
class ErasureRequest:
    """A pending row. `subject` is the user's id or the LINE id, `line_oa_id` that of the account."""

    id: int
    kind: Kind
    subject: str | None = field(repr=False)
    line_oa_id: int | None = field(repr=False)
    requested_at: datetime


@dataclass(frozen=True)
class Erasure:
    """A row as people may see it: whom it names, if it still does, is left out."""

    id: int
    kind: str
    requested_at: datetime
    finished_at: datetime | None
    counts: Mapping[str, int]

    @property
    def status(self) -> str:
        return "pending" if self.finished_at is None else "done"


class ErasureBusy(TransientFailure):
    """Another process carries the same request out just now."""


_REQUEST = "id, kind, subject, line_oa_id, requested_at"
#: By erasure_pending: a second request for the same one is the first, as long as that is pending.
_ADD = f"""
INSERT INTO erasure AS known (kind, subject, line_oa_id) VALUES (%(kind)s, %(subject)s, %(line_oa_id)s)
ON CONFLICT (kind, coalesce(line_oa_id, 0), coalesce(subject, '')) WHERE finished_at IS NULL
DO UPDATE SET kind = known.kind
RETURNING {_REQUEST}
"""  # noqa: S608 - the columns are the constant above
#: The table holds a row a request.
_PENDING = f"SELECT {_REQUEST} FROM erasure WHERE finished_at IS NULL ORDER BY id"  # noqa: S608
#: Primary key, like the others.
_FIND = f"SELECT {_REQUEST} FROM erasure WHERE finished_at IS NULL AND id = %s"  # noqa: S608
_READ = "SELECT id, kind, requested_at, finished_at, counts FROM erasure WHERE id = %s"
_COUNT = """
UPDATE erasure SET counts = counts || (
    SELECT jsonb_object_agg(key, value::bigint + coalesce((counts ->> key)::bigint, 0))
    FROM jsonb_each_text(%(more)s)
) WHERE id = %(id)s
"""
_FINISH = """
UPDATE erasure SET finished_at = clock_timestamp(), subject = NULL, line_oa_id = NULL
WHERE id = %s AND finished_at IS NULL
"""


def request(
    connection: psycopg.Connection, kind: Kind, *, subject: str | None = None, line_oa_id: int | None = None
) -> ErasureRequest:
    """The request, recorded; the pending one for the same subject if there is one. Commits in autocommit."""
    values = {"kind": kind, "subject": subject, "line_oa_id": line_oa_id}
    (made,) = _requests(connection, _ADD, values)
    return made


def pending(connection: psycopg.Connection) -> list[ErasureRequest]:
    """What is not finished, oldest first."""
    return _requests(connection, _PENDING)


def find_pending(connection: psycopg.Connection, request_id: int) -> ErasureRequest | None:
    """The request of that id, unless it is finished or never was."""
    return next(iter(_requests(connection, _FIND, [request_id])), None)


def read(connection: psycopg.Connection, request_id: int) -> Erasure:
    """The row of that id, which must exist."""
    with connection.cursor(row_factory=class_row(Erasure)) as cursor:
        (found,) = cursor.execute(_READ, [request_id])
    return found


def add(connection: psycopg.Connection, request_id: int, **counts: int) -> None:
    """Adds to the counts of what is gone; zeros leave no trace."""
    more = {name: count for name, count in counts.items() if count}
    if more:
        connection.execute(_COUNT, {"more": Jsonb(more), "id": request_id})


def finish(connection: psycopg.Connection, request_id: int) -> Erasure:
    """Nothing is left: the row names no one from now on."""
    connection.execute(_FINISH, [request_id])
    return read(connection, request_id)


@contextmanager
def only_eraser(
    connection: psycopg.Connection, request_id: int, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Within it, no other session carries the request out. The lock lasts as long as the connection.

    Raises `ErasureBusy` when another one does for some seconds.
    """
    key = [f"erasure {request_id}"]
    for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
        if connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", key).fetchone() == (
            True,
        ):
            break
        sleep(POLL_SECONDS)
    else:
        raise ErasureBusy(f"another process is at erasure {request_id} just now; it ends without this one")
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", key)


def _requests(connection: psycopg.Connection, statement: Any, values: Any = None) -> list[ErasureRequest]:
    with connection.cursor() as cursor:
        return [
            ErasureRequest(identity, Kind(kind), *rest)
            for identity, kind, *rest in cursor.execute(statement, values)
        ]
