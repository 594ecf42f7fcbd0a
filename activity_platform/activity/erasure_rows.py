"""A user leaves the log and the edges, while ingest and fold go on.

What goes:

- the events of the user in every month and in DEFAULT, folded or not, and their idempotency keys;
- the events of others whose object is the user (`object_type` user), for each of them says who the user is
  to somebody, and the edges to the user would be made from them again;
- the edges of the user, and those of others that point at the user (`target_type` user).

What somebody wrote into a `context` is not searched: an id in there can't be told from any other text.

Nothing is wrong in between, so that it may be killed anywhere. Each batch is one short transaction under the
fold's lock: it deletes events and takes what they had added from their edges and from the slices that had
folded them. So log, edges and slices agree at any moment, over any window of slices. Late events, which were
never folded, are told apart and only deleted. What edges hold of months that are gone leaves with the edges;
its number is noted, negative, in a slice of the erasures' own before all windows, so that the sum over all
slices is that over all edges.

The log is read twice, since whoever had written when the first reading began may commit behind it: these are
waited for in between. What arrives later is new data, so the user's tokens must be revoked first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import psycopg
import stamina
from psycopg import IsolationLevel, sql

from activity_platform import erasure_requests
from activity_platform.activity import erasure_sql, rollup, rollup_sql
from activity_platform.erasure_requests import ErasureRequest
from activity_platform.failures import TransientFailure
from activity_platform.gateways import postgres

T = TypeVar("T")

#: Events or edges that go in one transaction: some tens of milliseconds.
BATCH_ROWS = 5_000
#: Blocks of a table that one statement reads: 16 MB.
READ_BLOCKS = 2_048
WRITERS_PATIENCE_SECONDS = 60.0
MAINTENANCE_PATIENCE_SECONDS = 300.0
LOCK_PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.1

SESSION = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    # A slice of the fold takes some seconds. While the eraser waits for its lock, it holds none.
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
    "client_connection_check_interval": "2s",
    # Everything is found by place or primary key, whatever a table without statistics seems to be.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
_NAMES = {"fold": rollup_sql.STATE, "erased": rollup_sql.ERASED}


@dataclass(frozen=True)
class UserRows:
    """How many rows there are of a user, or were. `edges` are those of the user and those to the user."""

    events: int
    edges: int
    idempotency_keys: int


def count_rows(database_url: str, user_id: str) -> UserRows:
    """What an erasure would find now. Reads the whole log."""
    with postgres.outages_named(), _connect(database_url) as connection:
        (row,) = connection.execute(erasure_sql.COUNT_ROWS, {"user": user_id})
    return UserRows(*row)


def erase_rows(
    database_url: str,
    request: ErasureRequest,
    *,
    batch_rows: int = BATCH_ROWS,
    patience_seconds: float = WRITERS_PATIENCE_SECONDS,
) -> None:
    """Erases the request's user from the database, and counts in its row what is gone. One at a time.

    Raises `TransientFailure` when the fold, the maintenance or a writer stays in the way: what was reached
    by then is erased, and the rest is next time.
    """
    with (
        postgres.outages_named(),
        _connect(database_url) as connection,
        _months_at_rest(connection),
    ):
        rollup.read_watermark(connection)  # says what is wrong when the fold's state is gone
        eraser = _Eraser(connection, request.id, str(request.subject), batch_rows)
        writers = _open_writers(connection)
        eraser.sweep()
        _wait_for(connection, writers, patience_seconds)
        eraser.sweep()


@dataclass(frozen=True)
class _Eraser:
    """Sweeps the tables on one connection in autocommit."""

    connection: psycopg.Connection
    request_id: int
    user_id: str
    batch_rows: int

    def sweep(self) -> None:
        """Erases everything that is committed when it begins."""
        watermark = rollup.read_watermark(self.connection)
        self._erase_keys()
        for schema, name, blocks in self.connection.execute(erasure_sql.LEAVES).fetchall():
            self._erase_from(sql.Identifier(schema, name), blocks)
        self._erase_edges(watermark)

    def _erase_keys(self) -> None:
        values = {"user": self.user_id, "most": self.batch_rows}
        gone = self.batch_rows
        while gone == self.batch_rows:
            with self.connection.transaction():
                gone = self.connection.execute(erasure_sql.ERASE_KEYS, values).rowcount
                self._count(idempotency_keys=gone)

    def _erase_from(self, table: sql.Identifier, blocks: int) -> None:
        """Reads without a lock, so that neither fold nor ingest waits for what holds nothing of the user."""
        for found in self._found(erasure_sql.find_events(table), blocks):
            places = [place for (place,) in found]
            late = self._find_late(table, places)
            self._under_lock(partial(self._erase_events, table, places, late))

    def _find_late(self, table: sql.Identifier, places: list[str]) -> list[int]:
        found = self.connection.execute(erasure_sql.find_late(table), {"places": places} | _NAMES)
        return [identity for (identity,) in found]

    def _erase_edges(self, read_to: datetime) -> None:
        """The edges, whose events up to the watermark `read_to` are gone."""
        gone = self.batch_rows
        while gone == self.batch_rows:
            erase = partial(self._erase_some_edges, read_to, erasure_sql.ERASE_EDGES_OF_ACTOR, {"most": gone})
            gone, read_to = self._under_lock(erase)
        ((blocks,),) = self.connection.execute(erasure_sql.EDGE_BLOCKS)
        for keys in self._found(erasure_sql.FIND_EDGES_TO_USER, blocks):
            actors, edge_types = map(list, zip(*keys, strict=True))
            values = {"actors": actors, "edge_types": edge_types}
            erase = partial(self._erase_some_edges, read_to, erasure_sql.ERASE_EDGES_TO_USER, values)
            _, read_to = self._under_lock(erase)

    def _erase_some_edges(
        self, read_to: datetime, statement: Any, values: dict[str, Any], watermark: datetime
    ) -> tuple[int, datetime]:
        """How many went, and the watermark up to which the log holds no event of theirs. What a fold added
        since the log was read is erased first: no edge goes before its events."""
        window = {"user": self.user_id, "lower": read_to, "upper": watermark}
        for schema, name, places in self.connection.execute(erasure_sql.FIND_FOLDED_SINCE, window).fetchall():
            table = sql.Identifier(schema, name)
            self._erase_events(table, places, self._find_late(table, places), watermark)
        ((edges, events),) = self.connection.execute(statement, {"user": self.user_id} | values)
        self._note_rest(-events, -edges)
        self._count(edges=edges)
        return int(edges), watermark

    def _erase_events(
        self, table: sql.Identifier, places: list[str], late: list[int], watermark: datetime
    ) -> None:
        values = {"user": self.user_id, "places": places, "late": late, "watermark": watermark} | _NAMES
        ((gone, folded, held),) = self.connection.execute(erasure_sql.erase_events(table), values)
        self._note_rest(folded - held, 0)
        self._count(events=gone)

    def _note_rest(self, events: int, edges: int) -> None:
        if events or edges:
            self.connection.execute(erasure_sql.NOTE_REST, {"events": events, "edges": edges} | _NAMES)

    def _count(self, **counts: int) -> None:
        erasure_requests.add(self.connection, self.request_id, **counts)

    def _found(self, statement: sql.Composed, blocks: int) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of the statement, batch by batch, over all blocks of its table."""
        for first in range(0, blocks, READ_BLOCKS):
            values = {"first": f"({first},0)", "end": f"({first + READ_BLOCKS},0)", "user": self.user_id}
            rows = self.connection.execute(statement, values).fetchall()
            for start in range(0, len(rows), self.batch_rows):
                yield rows[start : start + self.batch_rows]

    def _under_lock(self, work: Callable[[datetime], T]) -> T:
        """Does `work` with the watermark in a transaction under the fold's lock; again, whole, when another
        writer of the edges was in its way."""
        try:
            for attempt in stamina.retry_context(
                on=rollup.YIELDS,
                attempts=None,
                timeout=LOCK_PATIENCE_SECONDS,
                wait_initial=0.05,
                wait_max=1.0,
            ):
                with attempt, self.connection.transaction():
                    ((watermark,),) = self.connection.execute(erasure_sql.LOCK_STATE, _NAMES)
                    return work(watermark)
        except rollup.YIELDS as error:
            raise TransientFailure(
                f"the erasure gave way to other writers for {LOCK_PATIENCE_SECONDS:g} s:"
                " see pg_stat_activity for long transactions on interaction_edges, and start it again"
            ) from error
        raise AssertionError("the last attempt returns or raises")


def _connect(database_url: str) -> psycopg.Connection:
    connection = postgres.connect(database_url, application_name="activity-platform erase")
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.prepare_threshold = None  # plans are for the values at hand
    for name, value in SESSION.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])
    return connection


@contextmanager
def _months_at_rest(connection: psycopg.Connection) -> Iterator[None]:
    """Within it no maintenance moves, archives or drops rows that are being looked for, nor does another
    erasure go on."""
    patience_ends = time.monotonic() + MAINTENANCE_PATIENCE_SECONDS
    while connection.execute(erasure_sql.TRY_LOCK_MAINTENANCE).fetchone() != (True,):
        if time.monotonic() > patience_ends:
            raise TransientFailure(
                "the partition maintenance or another erasure is at work: start this one again after it"
            )
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(erasure_sql.UNLOCK_MAINTENANCE)


def _open_writers(connection: psycopg.Connection) -> frozenset[str]:
    return frozenset(name for (name,) in connection.execute(erasure_sql.OPEN_WRITERS))


def _wait_for(connection: psycopg.Connection, writers: frozenset[str], patience_seconds: float) -> None:
    """Returns once none of the transactions is open any more."""
    patience_ends = time.monotonic() + patience_seconds
    while writers & _open_writers(connection):
        if time.monotonic() > patience_ends:
            raise TransientFailure(
                f"a transaction has been writing to activity_events for more than {patience_seconds:g} s:"
                " end it (see pg_stat_activity and pg_prepared_xacts), and start the erasure again"
            )
        time.sleep(POLL_SECONDS)
