"""Forward-only Alembic migrations of hand-written SQL: `upgrade` applies them, `ensure_current` insists.

Tables of the same names that are there already are adopted, provided that they lack nothing (see shape.py).

A migration only adds first, so that processes of the release before it, which are already at work, go on
while the schema is new; none of them starts on it. Several `upgrade` calls at once wait for each other on an
advisory lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import alembic.command
import alembic.config
import alembic.script
import psycopg
import sqlalchemy
from sqlalchemy.pool import NullPool

from activity_platform.failures import PermanentFailure
from activity_platform.gateways import postgres
from activity_platform.migrations import shape

LOCK_KEY = int.from_bytes(b"actpltfm")  # a number that no other program of the database is likely to use
LOCK_POLL_SECONDS = 0.2
MIGRATE = "run `activity-platform migrate`"


@dataclass(frozen=True)
class Mismatch:
    """The database stands at another migration than this release needs: what, and what to do about it."""

    what: str
    cure: str
    behind: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.cure}"


def upgrade(database_url: str, revision: str = "head") -> str:
    """Brings the database to `revision` and returns the revision it stands at.

    Waits while another `upgrade` is under way. Raises `PermanentFailure` when the database stands at a
    revision that this release does not know or holds tables that lack something, and
    `postgres.DatabaseAway` when it can't be reached.
    """
    with postgres.connect(database_url, application_name="activity-platform migrate") as connection:
        with _exclusively(connection):
            standing = current_revision(connection)
            if (found := mismatch(standing)) and not found.behind:
                raise PermanentFailure(str(found))
            if standing is None:
                _refuse_incomplete(connection)
            alembic.command.upgrade(_config(database_url), revision)
        return current_revision(connection) or ""


def current_revision(connection: psycopg.Connection) -> str | None:
    """The revision that the database stands at, None for one that was never migrated."""
    found = connection.execute("SELECT to_regclass('public.alembic_version') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return None
    row = connection.execute("SELECT version_num FROM public.alembic_version").fetchone()
    return row[0] if row else None


def head_revision() -> str:
    """The newest revision of this release."""
    return _scripts().get_current_head() or ""


def lacks(connection: psycopg.Connection) -> list[shape.Lack]:
    """What existing tables lack of what this release's migrations make. Changes nothing."""
    return list(shape.lacking(shape.read(connection), shape.expected()))


def mismatch(revision: str | None) -> Mismatch | None:
    """Why a process of this release must not work on a database that stands at `revision`, if it mustn't."""
    head = head_revision()
    if revision == head:
        return None
    if revision is None:
        what = f"the database was never migrated, this release needs migration {head}"
        return Mismatch(what, MIGRATE, behind=True)
    if any(script.revision == revision for script in _scripts().walk_revisions()):
        what = f"the database stands at migration {revision}, this release needs {head}"
        return Mismatch(what, MIGRATE, behind=True)
    return Mismatch(
        f"the database stands at migration {revision}, which this release (migration {head}) does not know",
        "use the release that made it, or a newer one",
        behind=False,
    )


def ensure_current(database_url: str) -> None:
    """Raises `PermanentFailure` with the cure unless the database stands at this release's head.

    One connection and one query. Raises `postgres.DatabaseAway` when it can't be reached.
    """
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name="activity-platform start") as connection,
    ):
        if found := mismatch(current_revision(connection)):
            raise PermanentFailure(str(found))


def _refuse_incomplete(connection: psycopg.Connection) -> None:
    if found := lacks(connection):
        tables = ", ".join(dict.fromkeys(lack.table for lack in found))
        raise PermanentFailure(
            f"nothing was changed: tables of these names are there and lack something ({tables}): "
            "`activity-platform migrate --check` lists what; add it or rename them, then migrate"
        )


@contextmanager
def _exclusively(connection: psycopg.Connection) -> Iterator[None]:
    # Polled: a session that waits inside a lock call holds a snapshot, on which a CREATE INDEX CONCURRENTLY
    # of the migration under way would wait in turn.
    while True:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", [LOCK_KEY]).fetchone()
        if row and row[0]:
            break
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute("SELECT pg_advisory_unlock(%s)", [LOCK_KEY])


def _config(database_url: str | None = None) -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    if database_url is not None:
        config.attributes["engine"] = _engine(database_url)
    return config


def _scripts() -> alembic.script.ScriptDirectory:
    return alembic.script.ScriptDirectory.from_config(_config())


def _engine(database_url: str) -> sqlalchemy.Engine:
    def connect() -> psycopg.Connection:
        return postgres.connect(database_url, application_name="activity-platform migrate", autocommit=False)

    return sqlalchemy.create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
