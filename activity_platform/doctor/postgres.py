"""The platform's PostgreSQL: version, migrations, rights, pooling, durability, connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg

from activity_platform import migrations
from activity_platform.doctor.finding import Finding, ok, red, warn
from activity_platform.gateways import postgres
from activity_platform.settings import Settings

OLDEST, NEWEST = 15, 18
CONNECTIONS_SHARE = 0.8
APPLICATION = "activity-platform doctor"

#: Membership with inheritance is what pg_stat_activity asks for.
SEES_OTHERS = """
SELECT current_user, pg_has_role('pg_read_all_stats', 'USAGE'), current_setting('track_activities')::boolean
"""
#: Only an owner may attach and drop partitions.
MAY_MAINTAIN = """
SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE'),
       pg_get_userbyid(relowner), relnamespace::regnamespace::text
FROM pg_class WHERE oid = to_regclass('public.activity_events')
"""
SAFETY = "SELECT current_setting('fsync')::boolean, current_setting('synchronous_commit')"
USE = """
SELECT count(*), current_setting('max_connections')::integer
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""


def look(settings: Settings) -> Iterator[Finding]:
    """Every check on one connection; the pooler's needs a second one."""
    try:
        with (
            postgres.outages_named(),
            postgres.connect(settings.database_url, application_name=APPLICATION) as connection,
        ):
            for check in CHECKS:
                yield from check(connection)
            yield from _pooling(connection, settings.database_url)
    except postgres.DatabaseAway as error:
        yield red("postgresql", str(error), _cure_of(error))


def _version(connection: psycopg.Connection) -> Iterator[Finding]:
    number = connection.info.server_version
    text = f"version {number // 10_000}.{number % 10_000}"
    if number // 10_000 < OLDEST:
        yield red("postgresql", text, f"upgrade the server: {OLDEST} to {NEWEST} are supported")
    elif number // 10_000 > NEWEST:
        yield warn("postgresql", f"{text} is newer than any tried", f"{OLDEST} to {NEWEST} are supported")
    else:
        yield ok("postgresql", text)


def _writable(connection: psycopg.Connection) -> Iterator[Finding]:
    ((read_only,),) = connection.execute("SELECT current_setting('transaction_read_only')::boolean")
    if read_only:
        yield red(
            "postgresql",
            "it takes no writes: a standby, or default_transaction_read_only is on",
            "point DATABASE_URL at the primary",
        )


def _migrations(connection: psycopg.Connection) -> Iterator[Finding]:
    revision = migrations.current_revision(connection)
    if found := migrations.mismatch(revision):
        yield red("migrations", found.what, found.cure)
    else:
        yield ok("migrations", f"at the head, {revision}")


def _rights(connection: psycopg.Connection) -> Iterator[Finding]:
    ((user, sees_others, tracked),) = connection.execute(SEES_OTHERS)
    if not sees_others:
        yield red(
            "rights",
            f"{user} can't see when transactions of other roles began; one that writes stops the fold",
            f'GRANT pg_read_all_stats TO "{user}"',
        )
    if not tracked:
        yield red(
            "rights", "track_activities is off, which stops the fold", "set track_activities = on and reload"
        )
    for may, owner, schema in connection.execute(MAY_MAINTAIN):
        if not may:
            yield red(
                "rights",
                f"{user} can't make and drop partitions of {schema}.activity_events",
                f'GRANT "{owner}" TO "{user}"; GRANT CREATE ON SCHEMA {schema} TO "{user}"',
            )
            return
    if sees_others and tracked:
        yield ok("rights", f"{user} sees all sessions and may maintain partitions")


def _safety(connection: psycopg.Connection) -> Iterator[Finding]:
    ((fsync, synchronous_commit),) = connection.execute(SAFETY)
    if not fsync or synchronous_commit == "off":
        name = "synchronous_commit" if fsync else "fsync"
        yield warn(
            "durability",
            f"{name} is off: what was answered with 202 may be gone after a crash",
            f"set {name} = on and reload",
        )
    else:
        yield ok("durability", "commits are on disk before they are answered")


def _connections(connection: psycopg.Connection) -> Iterator[Finding]:
    ((used, most),) = connection.execute(USE)
    text = f"{used} of {most} are in use"
    if used > CONNECTIONS_SHARE * most:
        yield warn("connections", text, "raise max_connections, or lower max_concurrent_runs in dagster.yaml")
    else:
        yield ok("connections", text)


CHECKS: tuple[Callable[[psycopg.Connection], Iterator[Finding]], ...] = (
    _version,
    _writable,
    _migrations,
    _rights,
    _safety,
    _connections,
)


def _pooling(connection: psycopg.Connection, database_url: str) -> Iterator[Finding]:
    """Whether a session keeps its server process. A pooler that gives it away between transactions also
    gives away advisory locks and settings, which runs and maintenance hold through a session.

    A second session takes a server process and keeps it for a transaction. If that is ours, or we are given
    another one during it or after it, there is no process of our own.
    """
    ours = _process(connection)
    with postgres.connect(database_url, application_name=APPLICATION) as second:
        with second.transaction():
            taken = _process(second)
            seen = {_process(connection)}
        seen |= {_process(connection) for _ in range(3)}
    if taken == ours or seen != {ours}:
        yield red(
            "pooler",
            "a pooler gives connections away between transactions, and with them advisory locks",
            "set pool_mode = session for this database, or connect to PostgreSQL itself",
        )
    else:
        yield ok("pooler", "none, or one that keeps sessions")


def _process(connection: psycopg.Connection) -> int:
    ((process,),) = connection.execute("SELECT pg_backend_pid()")
    return int(process)


def _cure_of(error: postgres.DatabaseAway) -> str:
    text = str(error)
    if "unsupported startup parameter" in text:
        return "set ignore_startup_parameters = options and pool_mode = session in pgbouncer.ini"
    if "authentication failed" in text or "no pg_hba.conf entry" in text:
        return "correct user and password in DATABASE_URL, or pg_hba.conf"
    if "does not exist" in text:
        return "create the database, or correct its name in DATABASE_URL"
    if "too many clients" in text or "remaining connection slots" in text:
        return "raise max_connections, or lower max_concurrent_runs in dagster.yaml"
    return "start PostgreSQL, or correct host and port in DATABASE_URL"
