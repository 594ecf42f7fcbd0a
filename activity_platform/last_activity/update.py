"""Takes the rows of a batch's users forward. How messages are split into batches never changes the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import psycopg
import stamina
from psycopg import sql

from activity_platform.failures import TransientFailure
from activity_platform.gateways import postgres
from activity_platform.gateways.queue import Burial
from activity_platform.last_activity.cached_users import UserRow, row_id_in
from activity_platform.last_activity.messages import Activity, UserKey
from activity_platform.last_activity.sql import FIND_USERS, MOVE_USERS

SESSION = {
    # An outsider's lock on a row may hold a batch up, but not for ever.
    "lock_timeout": "20s",
    # A batch is found row by row by index. Left to itself, the planner reads the whole table as long as it
    # has less than some hundred thousand rows, which takes several times as long.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
#: How often a batch that met a deadlock is tried before it is halved. A single row deadlocks with nobody.
ATTEMPTS = 5

#: Classes of SQLSTATE that the values of a message cause: data, integrity, check option, raised by a trigger.
_DATA_CLASSES = ("22", "23", "44", "P0")

_ASKED = ("ids", "organization_ids", "line_user_ids", "at", "previous_at", "types", "statuses")


@dataclass(frozen=True)
class Outcome:
    """What became of a batch, in messages. Each is updated, stale, one of `unknown`, or buried.

    `rows` are all rows that were met, as they are afterwards, moved or not.
    """

    updated: int = 0
    stale: int = 0
    unknown: tuple[Activity, ...] = ()
    burials: tuple[Burial, ...] = ()
    rows: tuple[UserRow, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.updated + other.updated,
            self.stale + other.stale,
            self.unknown + other.unknown,
            self.burials + other.burials,
            self.rows + other.rows,
        )


@dataclass
class _Fold:
    """The messages of one user in the order of delivery, and those that set a new latest time among them."""

    messages: list[Activity] = field(default_factory=list)
    records: list[Activity] = field(default_factory=list)

    def add(self, activity: Activity) -> None:
        self.messages.append(activity)
        if not self.records or activity.at > self.records[-1].at:
            self.records.append(activity)

    @property
    def latest(self) -> Activity:
        return self.records[-1]

    @property
    def previous_at(self) -> datetime | None:
        return self.records[-2].at if len(self.records) > 1 else None

    def moves(self, before: datetime | None) -> int:
        """How many of the messages would each have moved a row with that date forward."""
        return sum(before is None or record.at > before for record in self.records)


def connect(database_url: str) -> psycopg.Connection:
    """A connection for `update`: every statement is a transaction, with the settings of `SESSION`."""
    connection = postgres.connect(database_url, application_name="last-activity drain")
    with postgres.outages_named():
        for setting, value in SESSION.items():
            connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(setting), sql.Literal(value)))
    return connection


def update(
    connection: psycopg.Connection, copies: Mapping[str, bytes], activities: Sequence[Activity]
) -> Outcome:
    """Applies messages, given in the order of delivery. `copies` are their users' cached ones.

    Raises `TransientFailure` when PostgreSQL is away or refuses for a reason that lies in no message; some
    of the messages may be applied then, and all may be given again.
    """
    try:
        with postgres.outages_named():
            return _update(connection, copies, activities)
    except psycopg.Error as error:
        raise TransientFailure(
            f"PostgreSQL refuses last-activity updates: {type(error).__name__}, SQLSTATE {error.sqlstate}"
        ) from error


def find_line_users(
    connection: psycopg.Connection, copies: Mapping[str, bytes], users: Collection[UserKey]
) -> dict[UserKey, int]:
    """Row ids of those users that exist: from the cached copies, else by one statement."""
    ids = {}
    for user in users:
        copy = copies.get(user.line_user_id)
        if copy is not None and (row_id := row_id_in(copy, user)) is not None:
            ids[user] = row_id
    return ids | _look_up(connection, [user for user in users if user not in ids])


def _update(
    connection: psycopg.Connection, copies: Mapping[str, bytes], activities: Sequence[Activity]
) -> Outcome:
    ids = find_line_users(connection, copies, {activity.user for activity in activities})
    outcome = _move_all(connection, ids, activities)
    misled = {activity.user for activity in outcome.unknown} & ids.keys()
    if not misled:
        return outcome
    # The row that a copy named isn't theirs, or is gone; the table knows.
    again = [one for one in outcome.unknown if one.user in misled]
    never_found = tuple(one for one in outcome.unknown if one.user not in misled)
    return replace(outcome, unknown=never_found) + _move_all(connection, _look_up(connection, misled), again)


def _look_up(connection: psycopg.Connection, users: Collection[UserKey]) -> dict[UserKey, int]:
    if not users:
        return {}
    line_oa_ids, organization_ids, line_user_ids = zip(*users, strict=True)
    parameters = {
        "line_oa_ids": list(line_oa_ids),
        "organization_ids": list(organization_ids),
        "line_user_ids": list(line_user_ids),
    }
    found = connection.execute(FIND_USERS, parameters).fetchall()
    return {UserKey(*key): row_id for *key, row_id in found}


def _move_all(
    connection: psycopg.Connection, ids: Mapping[UserKey, int], activities: Sequence[Activity]
) -> Outcome:
    located: dict[int, list[Activity]] = defaultdict(list)
    unknown = []
    for activity in activities:
        if activity.user in ids:
            located[activity.user.line_oa_id].append(activity)
        else:
            unknown.append(activity)
    outcome = Outcome(unknown=tuple(unknown))
    for line_oa_id, messages in sorted(located.items()):
        outcome += _move_or_halve(connection, line_oa_id, ids, messages)
    return outcome


def _move_or_halve(
    connection: psycopg.Connection, line_oa_id: int, ids: Mapping[UserKey, int], messages: Sequence[Activity]
) -> Outcome:
    """Applies messages of one OA. Halving finds those that the table can't take, which are buried, and gets
    a batch through that others' transactions keep deadlocking with.
    """
    try:
        return _move(connection, line_oa_id, ids, messages)
    except psycopg.Error as error:
        lies_in_the_data = (error.sqlstate or "")[:2] in _DATA_CLASSES
        if lies_in_the_data and len(messages) == 1:
            return Outcome(burials=(Burial(messages[0].entry, "internal_error", _without_values(error)),))
        if len(messages) == 1 or not (lies_in_the_data or isinstance(error, postgres.RETRYABLE)):
            raise
    middle = len(messages) // 2
    first = _move_or_halve(connection, line_oa_id, ids, messages[:middle])
    return first + _move_or_halve(connection, line_oa_id, ids, messages[middle:])


def _move(
    connection: psycopg.Connection, line_oa_id: int, ids: Mapping[UserKey, int], messages: Sequence[Activity]
) -> Outcome:
    folds: dict[UserKey, _Fold] = defaultdict(_Fold)
    for message in messages:
        folds[message.user].add(message)
    updated = stale = 0
    rows = []
    for organization_id, line_user_id, before, *values in _execute(connection, line_oa_id, ids, folds):
        user = UserKey(line_oa_id, organization_id, line_user_id)
        fold = folds.pop(user)
        moves = fold.moves(before)
        updated += moves
        stale += len(fold.messages) - moves
        rows.append(UserRow(user, *values))
    unknown = tuple(message for fold in folds.values() for message in fold.messages)
    return Outcome(updated, stale, unknown, rows=tuple(rows))


def _execute(
    connection: psycopg.Connection,
    line_oa_id: int,
    ids: Mapping[UserKey, int],
    folds: Mapping[UserKey, _Fold],
) -> list[tuple[Any, ...]]:
    asked = (
        (
            *(ids[user], user.organization_id, user.line_user_id),
            *(fold.latest.at, fold.previous_at, fold.latest.type, fold.latest.status),
        )
        for user, fold in folds.items()
    )
    columns = map(list, zip(*asked, strict=True))
    parameters = dict(zip(_ASKED, columns, strict=True)) | {"line_oa_id": line_oa_id}
    for attempt in stamina.retry_context(
        on=postgres.RETRYABLE,
        attempts=ATTEMPTS,
        timeout=None,
        wait_initial=0.01,
        wait_max=1,
        wait_jitter=0.05,
    ):
        with attempt:
            return connection.execute(MOVE_USERS, parameters, binary=True).fetchall()
    raise AssertionError("the last attempt returns or raises")


def _without_values(error: psycopg.Error) -> str:
    """What the database objects to, without the row that its own message would show."""
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    return f"PostgreSQL refused the values: {type(error).__name__}, SQLSTATE {error.sqlstate}{constraint}"
