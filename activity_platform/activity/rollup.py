"""The fold: new events of the log are added to the edges, each exactly once.

    (watermark, upper]   →   one transaction: edges, slice and watermark move together

A fold may be killed anywhere, overlap with others and run again: what a transaction did not commit, the next
one does. The clock is that of the database. Everything here is plain SQL on one connection.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

import psycopg
from psycopg import IsolationLevel, errors

from activity_platform.activity import rollup_sql
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways import postgres

T = TypeVar("T")

#: Events that fold in one transaction: a few seconds of work at most.
SLICE_EVENTS = 500_000
WAITING_AT_MOST = 1_000_000
LATE_WINDOW = timedelta(hours=1)
TICK = timedelta(microseconds=1)

#: Another writer of edges or a maintenance step is waited for in short turns. Each is shorter than
#: deadlock_timeout (1 s by default), so that of two who wait for each other it is the fold that yields.
LOCK_TIMEOUT = "500ms"
LOCK_PATIENCE_SECONDS = 60.0
LOCK_PAUSE_SECONDS = 0.2
YIELDS = (*postgres.RETRYABLE, errors.LockNotAvailable)

#: A fold that was killed or frozen frees the state's row within seconds; its transaction is undone whole.
SESSION = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "lock_timeout": LOCK_TIMEOUT,
    "idle_in_transaction_session_timeout": "60s",
    "client_connection_check_interval": "2s",
    "work_mem": "128MB",  # one slice's groups and their sort in memory
    "jit": "off",
}


class Hold(StrEnum):
    """What set the end of the fold."""

    LAG = "lag"
    WRITER = "writer"
    HIDDEN_WRITER = "hidden writer"
    PREPARED = "prepared transaction"
    AHEAD = "ahead"
    BUSY = "busy"


@dataclass(frozen=True)
class Bound:
    """No transaction that is not visible yet may still commit a row stamped at or before `upper`.

    `upper` is None where that can't be known. `oldest_writer_at` is the start of the oldest open writer.
    """

    now: datetime
    upper: datetime | None
    reason: Hold
    oldest_writer_at: datetime | None = None


@dataclass(frozen=True)
class Slice:
    """One committed transaction of the fold over `(lower, upper]`; `more` is left below the bound."""

    lower: datetime
    upper: datetime
    events: int
    edges: int
    more: bool
    bound: Bound


@dataclass(frozen=True)
class FoldResult:
    """What a fold did and left.

    `events` are those with an edge rule, `edges` the rows they were added to, slice by slice. `waiting` rows
    are stamped after the watermark and up to now, counted up to a million. `late` events are stamped at or
    before the watermark at the start and were not there when it passed: no edge holds them.
    """

    lower: datetime
    watermark: datetime
    events: int
    edges: int
    slices: int
    lag_seconds: float
    busy: bool
    waiting: int
    late: int
    oldest_writer_seconds: float | None
    bound_reason: Hold


def fold(database_url: str, *, lag_seconds: float, slice_events: int = SLICE_EVENTS) -> FoldResult:
    """Folds until caught up, in slices of about `slice_events` at most.

    Raises `TransientFailure` when the edges stay locked by others, `PermanentFailure` when the state is gone.
    """
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name="activity-platform rollup") as connection,
    ):
        _prepare(connection)
        start = read_watermark(connection)
        slices: list[Slice] = []
        while isinstance(
            found := _yielding(lambda: _fold_slice(connection, lag_seconds, slice_events, slices)), Slice
        ):
            slices.append(found)
            if not found.more:
                break
        last = found.bound if isinstance(found, Slice) else found
        return _yielding(lambda: _result(connection, start, slices, last))


def read_bound(connection: psycopg.Connection, *, lag_seconds: float) -> Bound:
    """The latest stamp that may be folded now. To be read before the statement that folds, never in it.

    A row's stamp is taken by its INSERT, which by then holds its lock on the log. A writer without a lock
    when the locks are read will therefore stamp later than `now`, the start of that statement; one with a
    lock stamps after the start of its transaction. A writer whose locks are gone has committed, and is seen
    by any statement that starts after this one: the fold must be such a statement, with its own snapshot.

    Prepared transactions are looked for after the running ones: one that is prepared in between is seen.
    """
    ((now, oldest_start, hidden),) = connection.execute(rollup_sql.OPEN_WRITERS)
    ((prepared,),) = connection.execute(rollup_sql.PREPARED_WRITERS)
    if prepared:
        return Bound(now, None, Hold.PREPARED, oldest_start)
    if hidden:
        return Bound(now, None, Hold.HIDDEN_WRITER, oldest_start)
    behind = now - timedelta(seconds=lag_seconds) - TICK
    if oldest_start is not None and oldest_start - TICK < behind:
        return Bound(now, oldest_start - TICK, Hold.WRITER, oldest_start)
    return Bound(now, behind, Hold.LAG, oldest_start)


def count_late(connection: psycopg.Connection, watermark: datetime) -> int:
    """Events stamped at or before the watermark that no slice folded.

    Looked for in the last hour before the watermark and in one older slice, never in the whole log. A span
    that no slice covers, as when the watermark was moved by hand, counts as not folded. So does an event
    that commits while its own window is being folded, which only one with a stamp of its own can.
    """
    name = {"name": rollup_sql.STATE}
    hour_ago = name | {"upper": watermark - LATE_WINDOW}
    ((recent,),) = connection.execute(rollup_sql.SLICE_END_BEFORE, hour_ago)
    spans = [(recent, watermark)]
    spans += connection.execute(
        rollup_sql.ANY_SLICE,
        name | {"upper": recent, "where": random.random()},  # noqa: S311  (any slice will do)
    ).fetchall()
    return sum(_unfolded(connection, lower, upper) for lower, upper in spans)


def read_watermark(connection: psycopg.Connection) -> datetime:
    """Up to where the log is folded. Raises `PermanentFailure` when the state's row is missing."""
    row = connection.execute(rollup_sql.READ_STATE, {"name": rollup_sql.STATE}).fetchone()
    if row is None:
        raise PermanentFailure(
            f"activity_rollup_state has no row {rollup_sql.STATE!r}: restore it with the watermark of the"
            " newest slice in activity_rollup_slice, or events are counted twice"
        )
    watermark: datetime = row[0]
    return watermark.astimezone(UTC)


def _prepare(connection: psycopg.Connection) -> None:
    # Each statement needs a snapshot of its own, whatever the role's or database's default is.
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    connection.prepare_threshold = None  # plans are for the window at hand
    for name, value in SESSION.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])


def _fold_slice(
    connection: psycopg.Connection, lag_seconds: float, slice_events: int, before: list[Slice]
) -> Slice | Bound:
    """The next slice, committed; or the bound that leaves nothing to fold."""
    with connection.transaction():
        row = connection.execute(rollup_sql.LOCK_STATE, {"name": rollup_sql.STATE}).fetchone()
        bound = read_bound(connection, lag_seconds=lag_seconds)
        if row is None:
            return replace(bound, upper=None, reason=Hold.BUSY)
        lower: datetime = row[0]
        if lower > bound.now:
            return replace(bound, upper=None, reason=Hold.AHEAD)
        if bound.upper is None or bound.upper <= lower:
            return bound
        span = _span(before, slice_events) or bound.upper - lower
        upper, events = _slice_end(connection, lower, bound.upper, slice_events, span)
        window = {"name": rollup_sql.STATE, "lower": lower, "upper": upper, "events": events}
        edges = connection.execute(rollup_sql.FOLD, window).rowcount if events else 0
        if events:
            connection.execute(rollup_sql.RECORD_SLICE, window | {"edges": edges})
        connection.execute(rollup_sql.ADVANCE, window)
    return Slice(lower, upper, events, edges, upper < bound.upper, bound)


def _span(before: list[Slice], slice_events: int) -> timedelta | None:
    """A span that should hold nine tenths of a slice's events if they come as densely as in the last one."""
    if not before or not before[-1].events:
        return None
    factor = min(8.0, 0.9 * slice_events / before[-1].events)
    return (before[-1].upper - before[-1].lower) * factor


def _slice_end(
    connection: psycopg.Connection, lower: datetime, bound: datetime, most: int, span: timedelta
) -> tuple[datetime, int]:
    """An end up to `bound` with at most `most` foldable events below it, and their number.

    Starts with `span`, widens it over empty stretches and at least halves it in dense ones, so that a
    watermark of years ago reaches now in a few steps. Events of one microsecond are never parted, however
    many they are.
    """
    near, too_far = lower, None
    end = min(bound, lower + span)
    while True:
        events, latest = _foldable(connection, lower, end, most + 1)
        if events > most:
            too_far = end
        elif end == bound or events * 4 >= most:
            return end, events
        else:
            near, latest = end, None
        if too_far is None:
            end = min(bound, lower + 4 * (end - lower))
        elif too_far - near > TICK:
            end = _between(near, too_far, latest)
        else:
            end = too_far if near == lower else near
            return end, _foldable(connection, lower, end, None)[0]


def _between(near: datetime, too_far: datetime, latest: datetime | None) -> datetime:
    # The log mostly lies in the order of its stamps: a slice is full about where counting stopped.
    middle = near + (too_far - near) / 2
    likely = near + (latest - near) * 0.9 if latest else middle
    return likely if near < likely < middle else middle


def _foldable(
    connection: psycopg.Connection, lower: datetime, upper: datetime, most: int | None
) -> tuple[int, datetime | None]:
    """How many events of the window fold, counted up to `most`, and the latest stamp among those counted."""
    window = {"lower": lower, "upper": upper, "most": most}
    ((events, latest),) = connection.execute(rollup_sql.COUNT_FOLDABLE, window)
    return int(events), latest


def _unfolded(connection: psycopg.Connection, lower: datetime, upper: datetime) -> int:
    # The slices first: one that is folded in between then counts as logged only, and no late event is missed.
    window = {"name": rollup_sql.STATE, "lower": lower, "upper": upper}
    ((folded,),) = connection.execute(rollup_sql.FOLDED, window)
    return max(0, _foldable(connection, lower, upper, None)[0] - int(folded))


def _yielding(work: Callable[[], T]) -> T:
    """Does `work` again, whole, when another writer of the edges was in its way."""
    patience_ends = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            return work()
        except YIELDS as error:
            if time.monotonic() > patience_ends:
                raise TransientFailure(
                    f"the fold gave way to other writers for {LOCK_PATIENCE_SECONDS:g} s:"
                    " see pg_stat_activity for long transactions on interaction_edges or activity_events"
                ) from error
        time.sleep(LOCK_PAUSE_SECONDS)


def _result(connection: psycopg.Connection, start: datetime, slices: list[Slice], bound: Bound) -> FoldResult:
    watermark = read_watermark(connection)
    ((now,),) = connection.execute("SELECT clock_timestamp()")
    window = {"lower": watermark, "upper": now, "most": WAITING_AT_MOST}
    ((waiting,),) = connection.execute(rollup_sql.COUNT_WAITING, window)
    return FoldResult(
        lower=slices[0].lower if slices else start,
        watermark=watermark,
        events=sum(one.events for one in slices),
        edges=sum(one.edges for one in slices),
        slices=len(slices),
        lag_seconds=(now - watermark).total_seconds(),
        busy=bound.reason is Hold.BUSY,
        waiting=waiting,
        late=count_late(connection, start),
        oldest_writer_seconds=_age(bound, now),
        bound_reason=bound.reason,
    )


def _age(bound: Bound, now: datetime) -> float | None:
    return (now - bound.oldest_writer_at).total_seconds() if bound.oldest_writer_at else None
