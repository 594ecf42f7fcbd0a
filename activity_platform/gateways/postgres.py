"""PostgreSQL: connections, and what a failure of one means.

Every connection names itself in pg_stat_activity, gives up connecting after some seconds, notices a dead
peer by TCP keepalives and speaks UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from activity_platform.failures import TransientFailure

CONNECT_TIMEOUT_SECONDS = 5

#: libpq's parameters of every connection. Keepalives end a session to a vanished host within half a minute.
CONNECTION_PARAMETERS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "options": "-c timezone=UTC",
}

#: The whole transaction may be run again after one of these.
RETRYABLE = (errors.DeadlockDetected, errors.SerializationFailure)

#: The server or the way to it is away: shutdown, restart, no connection slot, lost socket.
AWAY = (psycopg.OperationalError, psycopg.InterfaceError)


class DatabaseAway(TransientFailure):
    """No connection to PostgreSQL, or it broke while in use. Nothing is known of an open transaction."""


def connect(database_url: str, *, application_name: str, autocommit: bool = True) -> psycopg.Connection:
    """A connection of its own. Raises `DatabaseAway` when there is none within some seconds."""
    try:
        return psycopg.connect(
            database_url, autocommit=autocommit, application_name=application_name, **CONNECTION_PARAMETERS
        )
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"PostgreSQL can't be reached: {_first_line(error)}") from error


@contextmanager
def outages_named() -> Iterator[None]:
    """Within it, a lost connection leaves as `DatabaseAway`; errors of statements pass unchanged."""
    try:
        yield
    except AWAY as error:
        # Statement errors such as a lock timeout are OperationalErrors too; they carry another class of code.
        if error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "53"):
            raise DatabaseAway(f"PostgreSQL went away: {_first_line(error)}") from error
        raise


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
