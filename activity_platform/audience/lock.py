"""One worker an audience at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from activity_platform.failures import TransientFailure

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.2


class AudienceBusy(TransientFailure):
    """Another worker is at this audience just now."""


@contextmanager
def audience_lock(
    connection: psycopg.Connection, audience_id: int, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Within it, no other session works on the audience. The lock is the session's: it lasts exactly as long
    as the connection does, so whatever it guards must go through this connection.

    Raises `AudienceBusy` when another worker holds it for some seconds.
    """
    for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
        if _call(connection, "pg_try_advisory_lock", audience_id):
            break
        sleep(POLL_SECONDS)
    else:
        raise AudienceBusy("another worker is at this audience just now")
    try:
        yield
    finally:
        if not connection.closed:
            _call(connection, "pg_advisory_unlock", audience_id)


def _call(connection: psycopg.Connection, function: str, audience_id: int) -> bool:
    statement = sql.SQL("SELECT {}(hashtextextended(%s, 0))").format(sql.Identifier(function))
    row = connection.execute(statement, [f"audience {audience_id}"]).fetchone()
    return row is not None and bool(row[0])
