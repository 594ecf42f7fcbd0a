"""Forward-only Alembic migrations of hand-written SQL, and `upgrade`, which applies them.

A migration only adds first, so that the release before it keeps working on the new schema. Several
`upgrade` calls at once wait for each other on an advisory lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import alembic.command
import alembic.config
import alembic.script
import psycopg
import sqlalchemy
from sqlalchemy.pool import NullPool

from activity_platform.failures import PermanentFailure
from activity_platform.gateways import postgres

LOCK_KEY = int.from_bytes(b"actpltfm")  # a number that no other program of the database is likely to use
LOCK_POLL_SECONDS = 0.2


def upgrade(database_url: str, revision: str = "head") -> str:
    """Brings the database to `revision` and returns the revision it stands at.

    Waits while another `upgrade` is under way. Raises `PermanentFailure` when the database stands at a
    revision that this release does not know, `postgres.DatabaseAway` when it can't be reached.
    """
    with postgres.connect(database_url, application_name="activity-platform migrate") as connection:
        with _exclusively(connection):
            _refuse_unknown(current_revision(connection))
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


def _refuse_unknown(revision: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise PermanentFailure(
            f"the database stands at migration {revision}, which this release does not know: "
            "use the release that made it, or a newer one"
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
