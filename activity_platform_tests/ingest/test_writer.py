"""Group commit: who shares a transaction, and what each is told when something goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from activity_platform.activity import event_log, events
from activity_platform.activity.event_log import Submission
from activity_platform.gateways import postgres
from activity_platform.ingest import writer as writer_module
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.writer import EventsRefused, QueueFull, Unconfirmed, Writer
from activity_platform_tests.ingest.served import body, event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def submission(user: str, size: int = 1, key: str | None = None) -> Submission:
    return event_log.submission(user, events.parse(body(*[event()] * size)), key)


def unstorable(user: str) -> Submission:
    """Rows that PostgreSQL refuses. No request makes such: the parser refuses it first."""
    return Submission(user, f"{user}\tview\tevent\tp\t\\N\t{{broken\n".encode(), 1)


@asynccontextmanager
async def running(database_url: str) -> AsyncIterator[Writer]:
    writer = Writer(database_url, Metrics())
    writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


def counts(connection: psycopg.Connection) -> dict[str, int]:
    """Stored events a user."""
    return dict(
        connection.execute("SELECT user_id, count(*) FROM activity_events GROUP BY user_id").fetchall()
    )


def transactions(connection: psycopg.Connection) -> int:
    found = connection.execute("SELECT count(DISTINCT xmin::text) FROM activity_events").fetchone()
    return int(found[0]) if found else 0


async def test_requests_that_come_together_share_transactions(
    database_url: str, connection: psycopg.Connection
) -> None:
    async with running(database_url) as writer:
        sizes = {f"u{number}": number % 7 + 1 for number in range(200)}
        told = await asyncio.gather(*(writer.write(submission(user, size)) for user, size in sizes.items()))
    assert told == list(sizes.values())
    assert counts(connection) == sizes
    assert transactions(connection) <= 4


async def test_a_batch_is_bounded(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH_BYTES", 10 * len(submission("u0").rows))
    async with running(database_url) as writer:
        await asyncio.gather(*(writer.write(submission("u0")) for _ in range(100)))
    assert transactions(connection) == 10


async def test_no_request_fails_for_its_neighbours_sake(
    database_url: str, connection: psycopg.Connection
) -> None:
    items = [submission(f"u{n}", 2, "k" if n % 2 else None) for n in range(20)]
    items[3], items[11] = unstorable("bad3"), unstorable("bad11")
    async with running(database_url) as writer:
        told = await asyncio.gather(*map(writer.write, items), return_exceptions=True)
        again = await asyncio.gather(*(writer.write(item) for item in items if item.key))
    assert [type(told[n]) for n in (3, 11)] == [EventsRefused, EventsRefused]
    assert [outcome for n, outcome in enumerate(told) if n not in (3, 11)] == [2] * 18
    assert set(again) == {2}
    assert counts(connection) == {f"u{n}": 2 for n in range(20) if n not in (3, 11)}


async def test_what_is_refused_takes_its_key_back(database_url: str, connection: psycopg.Connection) -> None:
    bad = unstorable("u")
    async with running(database_url) as writer:
        with pytest.raises(EventsRefused):
            await writer.write(Submission(bad.user_id, bad.rows, 1, "k"))
        assert await writer.write(submission("u", 3, "k")) == 3
    assert counts(connection) == {"u": 3}


async def test_more_than_the_queue_takes_is_refused_at_once(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_REQUESTS", 10)
    async with running(database_url) as writer:
        told = await asyncio.gather(
            *(writer.write(submission("u")) for _ in range(15)), return_exceptions=True
        )
        assert [type(outcome) for outcome in told[10:]] == [QueueFull] * 5
        assert await writer.write(submission("u")) == 1
    assert counts(connection) == {"u": 11}


async def test_who_waits_too_long_is_told_and_not_stored(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_SECONDS", 0.2)
    monkeypatch.setattr(writer_module, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(writer_module, "CONNECTIONS", 1)
    async with running(database_url) as writer:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK activity_events IN ACCESS EXCLUSIVE MODE")
            first = asyncio.create_task(writer.write(submission("first")))
            await asyncio.sleep(0.2)
            with pytest.raises(QueueFull):
                await writer.write(submission("late"))
        assert await first == 1
    assert counts(connection) == {"first": 1}


async def test_a_clean_stop_answers_what_was_taken(database_url: str, connection: psycopg.Connection) -> None:
    writer = Writer(database_url, Metrics())
    writer.start()
    tasks = [asyncio.create_task(writer.write(submission("u"))) for _ in range(300)]
    await asyncio.sleep(0)
    await writer.stop()
    assert await asyncio.gather(*tasks) == [1] * 300
    assert counts(connection) == {"u": 300}
    with pytest.raises(QueueFull):
        await writer.write(submission("u"))


async def test_a_server_that_went_away_meanwhile_is_found_again(
    database_url: str, connection: psycopg.Connection
) -> None:
    """The kept connections are dead at the next request; it does not fail for that."""
    async with running(database_url) as writer:
        await writer.write(submission("u"))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'activity-platform ingest'"
        )
        assert await asyncio.gather(*(writer.write(submission("u")) for _ in range(5))) == [1] * 5
    assert counts(connection) == {"u": 6}


async def test_a_database_that_is_away_is_told_at_once() -> None:
    async with running("postgresql://nobody@127.0.0.1:1/none") as writer:
        with pytest.raises(postgres.DatabaseAway):
            await asyncio.wait_for(writer.write(submission("u")), 5)


async def test_a_session_commits_durably_whatever_the_database_says(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        [name] = owner.execute("SELECT current_database()").fetchone() or [""]
        statement = sql.SQL("ALTER DATABASE {} SET synchronous_commit = off")
        owner.execute(statement.format(sql.Identifier(name)))
    lane = writer_module.Lane(database_url)
    cursor = await (await lane.connection()).execute("SHOW synchronous_commit")
    assert await cursor.fetchone() == ("on",)
    await lane.close()


# A connection that breaks around COMMIT


@dataclass
class Proxy:
    """Stands between the writer and PostgreSQL and breaks the connection when it sees a COMMIT.

    `passes` tells whether the COMMIT still reaches the server. Breaks the first `breaks` connections that
    send one; while `away`, it takes no connection.
    """

    target: tuple[str, int]
    passes: bool
    breaks: int = 1
    away: bool = False
    away_after_break: bool = False
    broken: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection(*self.target)
        self.writers += [writer, server_writer]
        back = asyncio.create_task(self._copy(server_reader, writer))
        while data := await reader.read(65536):
            if b"COMMIT" in data and self.broken < self.breaks:
                self.broken += 1
                back.cancel()
                await asyncio.wait([back])
                if self.passes:
                    server_writer.write(data)
                    await server_reader.read(65536)  # the confirmation, which the client shall not see
                self.away = self.away_after_break
                break
            server_writer.write(data)
        server_writer.close()
        writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


@asynccontextmanager
async def proxied(database_url: str, proxy: Proxy) -> AsyncIterator[str]:
    """The address of the database behind the proxy."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    parts = urlsplit(database_url)
    credentials = parts.netloc.rpartition("@")[0]
    try:
        yield urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{port}"))
    finally:
        server.close()
        for writer in proxy.writers:
            writer.close()


def target_of(database_url: str) -> tuple[str, int]:
    parts = urlsplit(database_url)
    return str(parts.hostname), int(parts.port or 5432)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("key", [None, "k"])
async def test_an_unconfirmed_commit_is_looked_up_and_never_doubled(
    database_url: str, connection: psycopg.Connection, passes: bool, key: str | None
) -> None:
    proxy = Proxy(target_of(database_url), passes)
    async with proxied(database_url, proxy) as url, running(url) as writer:
        told = await asyncio.gather(*(writer.write(submission(f"u{n}", n, key)) for n in range(1, 6)))
    assert proxy.broken == 1
    assert told == [1, 2, 3, 4, 5]
    assert counts(connection) == {f"u{n}": n for n in range(1, 6)}


async def test_a_connection_that_breaks_every_time_ends_with_an_error_and_no_row(
    database_url: str, connection: psycopg.Connection
) -> None:
    proxy = Proxy(target_of(database_url), passes=False, breaks=100)
    async with proxied(database_url, proxy) as url, running(url) as writer:
        with pytest.raises(postgres.DatabaseAway):
            await writer.write(submission("u"))
    assert proxy.broken == 2
    assert counts(connection) == {}


async def test_an_outcome_is_waited_for_until_the_database_is_back(
    database_url: str, connection: psycopg.Connection
) -> None:
    proxy = Proxy(target_of(database_url), passes=True, away_after_break=True)
    async with proxied(database_url, proxy) as url, running(url) as writer:
        task = asyncio.create_task(writer.write(submission("u")))
        await asyncio.sleep(0.7)
        assert not task.done()
        with pytest.raises(postgres.DatabaseAway):
            await writer.write(submission("other"))
        proxy.away = False
        assert await task == 1
    assert counts(connection) == {"u": 1}


async def test_an_outcome_that_stays_unknown_is_no_202(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SETTLE_SECONDS", 0.5)
    proxy = Proxy(target_of(database_url), passes=True, away_after_break=True)
    async with proxied(database_url, proxy) as url, running(url) as writer:
        with pytest.raises(Unconfirmed):
            await writer.write(submission("u"))


async def test_an_id_that_a_crash_gave_to_another_transaction_is_not_mistaken(
    database_url: str, connection: psycopg.Connection
) -> None:
    """The id is committed, but its rows were written after ours could have been."""
    async with running(database_url) as writer:
        await writer.write(submission("u"))
    found = connection.execute(
        "SELECT xmin::text, created_at - interval '2 s', created_at - interval '1 s', created_at"
        " FROM activity_events"
    ).fetchone()
    assert found is not None
    identity, before, shortly_before, at = found
    lane = writer_module.Lane(database_url)
    session = await lane.connection()
    assert await event_log.committed(session, event_log.Transaction(identity, before, at)) is True
    assert (
        await event_log.committed(session, event_log.Transaction(identity, before, shortly_before)) is False
    )
    never = str(int(identity) + 1_000_000)
    assert await event_log.committed(session, event_log.Transaction(never, before, at)) is False
    with psycopg.connect(database_url) as under_way:
        [(identity,)] = under_way.execute("SELECT pg_current_xact_id()::text").fetchall()
        assert await event_log.committed(session, event_log.Transaction(identity, before, at)) is None
    await lane.close()
