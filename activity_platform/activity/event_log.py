"""Appending to activity_events: whole requests, many in one transaction, and idempotency keys beside them.

A transaction is short: the fold's upper bound waits for the oldest one that is open. `created_at` stays the
column's default, the clock at the moment of each row.

When the connection breaks while a COMMIT is under way, nobody says whether it took place. The rows say it:
`Transaction` remembers enough to find them again, and `committed` looks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor, errors
from psycopg.rows import tuple_row

from activity_platform.activity.events import EventBatch

#: NULL in COPY's text format.
NULL = r"\N"

#: How long a key is remembered.
KEY_LIFETIME = timedelta(hours=24)

BEGIN = "BEGIN; SELECT pg_current_xact_id()::text, clock_timestamp()"

#: Partitions are found per row by created_at; no index but the BRIN one is touched.
COPY_EVENTS = "COPY activity_events (user_id, verb, object_type, object_id, surface, context) FROM STDIN"

#: Primary key (user_id, key). The keys come sorted, so that two transactions never wait for each other in
#: a circle. A key whose holder is still open waits for it; one that is older than its lifetime is taken over.
CLAIM_KEYS = """
INSERT INTO idempotency_key (user_id, key, accepted)
SELECT * FROM unnest(%(users)s::text[], %(keys)s::text[], %(accepted)s::integer[])
ON CONFLICT (user_id, key) DO UPDATE SET accepted = EXCLUDED.accepted, created_at = clock_timestamp()
WHERE idempotency_key.created_at <= clock_timestamp() - %(lifetime)s
RETURNING user_id, key
"""

#: Primary key (user_id, key).
FIRST_ANSWERS = """
SELECT user_id, key, accepted
FROM idempotency_key JOIN unnest(%(users)s::text[], %(keys)s::text[]) AS asked (user_id, key)
USING (user_id, key)
"""

TRANSACTION_STATUS = "SELECT pg_xact_status(%(id)s::xid8)"

#: BRIN on created_at of both tables. xmin is the low half of the transaction's id.
ROWS_OF_TRANSACTION = """
SELECT EXISTS (SELECT FROM activity_events
               WHERE created_at BETWEEN %(begun)s AND %(ended)s AND xmin = %(id)s::xid8::xid)
    OR EXISTS (SELECT FROM idempotency_key
               WHERE created_at BETWEEN %(begun)s AND %(ended)s AND xmin = %(id)s::xid8::xid)
"""


#: User and idempotency key.
Key = tuple[str, str]


@dataclass(frozen=True)
class Submission:
    """One request's events as rows of COPY's text format, and its idempotency key, if it has one."""

    user_id: str
    rows: bytes
    count: int
    key: str | None = None


@dataclass(frozen=True)
class Transaction:
    """What finds a transaction's rows again: its id, and server times between which all were written."""

    id: str
    begun: datetime
    ended: datetime


class OutcomeUnknown(Exception):
    """The connection broke during COMMIT. `committed(…, transaction)` tells what happened.

    `accepted` is what `append` would have returned.
    """

    def __init__(self, transaction: Transaction, accepted: Sequence[int]) -> None:
        super().__init__("the connection broke during COMMIT")
        self.transaction = transaction
        self.accepted = accepted


def submission(user_id: str, batch: EventBatch, key: str | None = None) -> Submission:
    """The request's events, ready to be written."""
    text = _escape if batch.escaped else str
    user = _escape(user_id)
    lines = [
        "\t".join(
            (
                user,
                event.verb,
                event.object_type,
                text(event.object_id),
                NULL if event.surface is None else text(event.surface),
                NULL if context is None else text(context),
            )
        )
        for event, context in zip(batch.events, batch.contexts, strict=True)
    ]
    return Submission(user_id, "".join([f"{line}\n" for line in lines]).encode(), len(batch), key)


async def append(connection: AsyncConnection, submissions: Sequence[Submission]) -> list[int]:
    """Writes all of them in one transaction, and returns for each how many events it accepted.

    A submission whose key is known, or comes a second time, adds nothing and returns what the first one with
    that key did. Returns once the rows are durable. Any error leaves no row behind, except `OutcomeUnknown`,
    after which `committed` tells.
    """
    started = time.monotonic()
    cursor = connection.cursor(row_factory=tuple_row)
    firsts: dict[Key, Submission] = {}
    for item in submissions:
        if item.key is not None:
            firsts.setdefault((item.user_id, item.key), item)
    try:
        await cursor.execute(BEGIN)
        cursor.nextset()
        [(identity, begun)] = await cursor.fetchall()
        known = await _claim_keys(cursor, firsts) if firsts else {}
        written = [item for item in submissions if _is_new(item, firsts, known)]
        if rows := b"".join([item.rows for item in written]):
            async with cursor.copy(COPY_EVENTS) as copy:
                await copy.write(rows)
    except Exception:
        await _roll_back(connection)
        raise
    ended = begun + timedelta(seconds=time.monotonic() - started)
    accepted = [_accepted(item, firsts, known) for item in submissions]
    try:
        await cursor.execute("COMMIT", prepare=False)
    except psycopg.Error as error:
        if connection.closed:
            raise OutcomeUnknown(Transaction(identity, begun, ended), accepted) from error
        raise
    return accepted


def _is_new(item: Submission, firsts: Mapping[Key, Submission], known: Mapping[Key, int]) -> bool:
    if item.key is None:
        return True
    name = item.user_id, item.key
    return firsts[name] is item and name not in known


def _accepted(item: Submission, firsts: Mapping[Key, Submission], known: Mapping[Key, int]) -> int:
    if item.key is None:
        return item.count
    name = item.user_id, item.key
    return known.get(name, firsts[name].count)


async def committed(connection: AsyncConnection, transaction: Transaction) -> bool | None:
    """Whether the transaction took place; None while its session still works on it.

    The id alone is not enough: after a crash PostgreSQL may give the id of a transaction that left no trace
    to a new one. The new one's rows are written after the crash, so after `transaction.ended`.
    """
    cursor = connection.cursor(row_factory=tuple_row)
    named = {"id": transaction.id, "begun": transaction.begun, "ended": transaction.ended}
    try:
        status = await (await cursor.execute(TRANSACTION_STATUS, named)).fetchone()
    except errors.InvalidParameterValue:  # an id that the server has not given out (again) since its crash
        return False
    if status == ("in progress",):
        return None
    found = await (await cursor.execute(ROWS_OF_TRANSACTION, named)).fetchone()
    return status == ("committed",) and found == (True,)


async def _claim_keys(cursor: AsyncCursor[Any], firsts: Mapping[Key, Submission]) -> dict[Key, int]:
    """Takes the keys that are free, and returns what was accepted under those that are not."""
    ordered = sorted(firsts)
    asked = {
        "users": [user for user, _ in ordered],
        "keys": [key for _, key in ordered],
        "accepted": [firsts[name].count for name in ordered],
        "lifetime": KEY_LIFETIME,
    }
    await cursor.execute(CLAIM_KEYS, asked)
    taken = set(await cursor.fetchall())
    if len(taken) == len(ordered):
        return {}
    await cursor.execute(FIRST_ANSWERS, asked)
    return {(user, key): accepted async for user, key, accepted in cursor if (user, key) not in taken}


async def _roll_back(connection: AsyncConnection) -> None:
    if not connection.closed:
        with contextlib.suppress(psycopg.Error):
            await connection.execute("ROLLBACK")


def _escape(text: str) -> str:
    r"""COPY's text format sets backslash, tab and line ends apart by a backslash."""
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
