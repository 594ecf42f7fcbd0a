"""Maintains the log's partitions: reads the catalog, has it planned, and carries the plan out.

Each step is a transaction of its own. What takes time happens before it asks for the log, and it asks for
at most `LOCK_TIMEOUT`: ingest queues behind a request that waits. A step that gets no lock is tried again
while there is patience, then left for the next maintenance; a step that fails does not stop the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import psycopg
from psycopg import IsolationLevel, errors, sql

from activity_platform.activity import partition_sql
from activity_platform.activity.partition_plan import (
    PARENT,
    Action,
    Catalog,
    Partition,
    Plan,
    Step,
    Stray,
    past_retention,
    plan,
)
from activity_platform.activity.rollup import read_watermark
from activity_platform.failures import PlatformError
from activity_platform.gateways import postgres

log = logging.getLogger(__name__)

#: How long ingest may have to queue behind a step that waits for the log, and then for one that has it.
LOCK_TIMEOUT = "300ms"
HOLD_TIMEOUT = "600ms"
PATIENCE_SECONDS = 20.0
PAUSE_SECONDS = 1.0  # in which those who queued are served
IN_THE_WAY = (errors.LockNotAvailable, errors.QueryCanceled, *postgres.RETRYABLE)


class Archive(Protocol):
    """Where a month lies before it is dropped."""

    def missing(self, partition: Partition, /) -> int:
        """How many of its days are not archived yet."""

    def store(self, partition: Partition, /) -> bool:
        """Archives them. False says that not all could be, and keeps the month."""


@dataclass(frozen=True)
class Done:
    """What became of a step: what was done, and why. `rows` were moved, deleted or dropped."""

    action: Action
    partition: str
    reason: str
    rows: int = 0
    of_default: bool = False
    unfolded: bool = False
    timed_out: bool = False
    failed: bool = False


@dataclass(frozen=True)
class MaintenanceResult:
    """A line a partition, and counts. `skipped` steps got no lock and are left for the next maintenance."""

    steps: tuple[Done, ...]

    @property
    def created(self) -> int:
        return sum(step.action is Action.CREATE for step in self.steps)

    @property
    def moved_rows(self) -> int:
        return sum(step.rows for step in self.steps if step.action is Action.MOVE)

    @property
    def dropped(self) -> int:
        return sum(step.action is Action.DROP and not step.of_default for step in self.steps)

    @property
    def deleted_rows(self) -> int:
        """Rows of DEFAULT that were past retention."""
        return sum(step.rows for step in self.steps if step.action is Action.DROP and step.of_default)

    @property
    def kept_unfolded(self) -> int:
        return sum(step.unfolded for step in self.steps)

    @property
    def skipped(self) -> int:
        return sum(step.timed_out for step in self.steps)

    @property
    def failed(self) -> int:
        return sum(step.failed for step in self.steps)


def maintain(
    database_url: str,
    *,
    now: datetime | None,
    retention_days: int,
    ahead: int,
    archive_before_drop: bool = False,
    archive: Archive | None = None,
    dry_run: bool = False,
    patience_seconds: float = PATIENCE_SECONDS,
) -> MaintenanceResult:
    """Plans for `now` (None: the database's clock) and applies it, or only says what it would do.

    Several at once take turns; the second finds nothing to do.
    """
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name="activity-platform partitions") as connection,
    ):
        _prepare(connection)
        if not dry_run:
            connection.execute(partition_sql.LOCK_MAINTENANCE)
        watermark = read_watermark(connection)
        ((clock,),) = connection.execute("SELECT clock_timestamp()")
        now = now or clock
        catalog = read_catalog(connection)
        going = past_retention(catalog, now=now, retention_days=retention_days)
        planned = plan(
            catalog,
            now=now,
            watermark=watermark,
            retention_days=retention_days,
            ahead=ahead,
            archive_before_drop=archive_before_drop,
            can_archive=archive is not None,
            unarchived=_unarchived(going, archive) if archive_before_drop and archive else {},
        )
        if dry_run:
            return MaintenanceResult(tuple(_unchanged(step) for step in planned.steps))
        return apply(
            connection,
            planned,
            watermark=watermark,
            archive=archive if archive_before_drop else None,
            patience_seconds=patience_seconds,
        )


def read_catalog(connection: psycopg.Connection) -> Catalog:
    """What there is now. Independent of the session's time zone and date style."""
    with connection.transaction():
        connection.execute("SET LOCAL timezone = 'UTC'")
        connection.execute("SET LOCAL datestyle = 'ISO, YMD'")
        partitions: list[Partition] = []
        default: Partition | None = None
        for schema, name, pending, is_default, lower, upper in connection.execute(partition_sql.PARTITIONS):
            found = Partition(name, lower, upper, schema, pending)
            if is_default:
                default = found
            else:
                partitions.append(found)
        return Catalog(
            partitions=tuple(partitions),
            default=default,
            strays=tuple(_strays(connection, default)),
            unplaceable_rows=_unplaceable(connection, default),
            others=dict(connection.execute(partition_sql.OTHERS).fetchall()),
        )


def apply(
    connection: psycopg.Connection,
    planned: Plan,
    *,
    watermark: datetime,
    archive: Archive | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> MaintenanceResult:
    """Carries the plan out on a connection in autocommit. `patience_seconds` is for all steps together."""
    patience_ends = time.monotonic() + patience_seconds
    work = _Work(connection, planned.default, watermark, archive, patience_ends)
    steps = list(planned.steps)
    done: list[Done] = []
    while steps:
        step = steps.pop(0)
        move = steps.pop(0) if steps and steps[0].action is Action.MOVE else None
        done.extend(work.do(step, move))
    return MaintenanceResult(tuple(done))


@dataclass(frozen=True)
class _Work:
    """The steps' transactions on one connection."""

    connection: psycopg.Connection
    default: Partition | None
    watermark: datetime
    archive: Archive | None
    patience_ends: float

    def do(self, step: Step, move: Step | None) -> Iterator[Done]:
        """The step with its outcome; a create with the move that belongs to it."""
        if step.action is Action.CREATE:
            yield from self._attempt(step, lambda: self._create(step, move))
        elif step.action is Action.DROP and step.before is not None:
            yield from self._attempt(step, lambda: self._delete_strays(step))
        elif step.action is Action.DROP:
            yield from self._attempt(step, lambda: self._drop(step))
        else:
            yield _unchanged(step)

    def _attempt(self, step: Step, work: Callable[[], list[Done]]) -> list[Done]:
        tries = 0
        while True:
            tries += 1
            try:
                return work()
            except IN_THE_WAY as error:
                if time.monotonic() + PAUSE_SECONDS > self.patience_ends:
                    reason = f"left for the next time: {PARENT} is in use ({tries} tries, {_line(error)})"
                    return [replace(_unchanged(step), action=Action.SKIP, reason=reason, timed_out=True)]
            except (psycopg.Error, PlatformError) as error:  # the latter from the archive
                if self.connection.broken:
                    raise
                reason = f"{step.action} failed: {_line(error)}"
                return [replace(_unchanged(step), action=Action.SKIP, reason=reason, failed=True)]
            time.sleep(PAUSE_SECONDS)

    def _create(self, step: Step, move: Step | None) -> list[Done]:
        """Makes the table, moves what waits, attaches it.

        The table is made alone and its rows are moved before the log is locked, which may take long and
        stops nobody: an INSERT into DEFAULT goes on. What came in meanwhile is moved under the lock. The
        log is locked before DEFAULT, in the order of an INSERT.
        """
        partition = step.partition
        names = self._names(partition)
        bounds = {"lower": partition.lower, "upper": partition.upper}
        with self.connection.transaction():
            self._set_timeout("lock_timeout", LOCK_TIMEOUT)
            # No identity: PostgreSQL 17 and later attach no table that has one of its own.
            self._execute(
                "CREATE TABLE {partition} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
                " INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING INDEXES)",
                names,
            )
            # What proves the bounds to ATTACH, which then need not read the table.
            self._execute(
                "ALTER TABLE {partition} ADD CONSTRAINT bounds"
                " CHECK (created_at >= {lower} AND created_at < {upper})",
                names,
            )
            moved = self._move(names, bounds)
            self._lock_log(names)
            moved += self._move(names, bounds)
            self._execute(
                "ALTER TABLE {parent} ATTACH PARTITION {partition} FOR VALUES FROM ({lower}) TO ({upper})",
                names,
            )
            self._execute("ALTER TABLE {partition} DROP CONSTRAINT bounds", names)
        done = [_unchanged(step)]
        if move or moved:
            reason = f"{moved} rows moved out of DEFAULT"
            done.append(Done(Action.MOVE, partition.name, reason, rows=moved))
        return done

    def _drop(self, step: Step) -> list[Done]:
        partition = step.partition
        if self.archive and not self.archive.store(partition):
            return [replace(_unchanged(step), action=Action.KEEP, reason=f"{step.reason}, but not archived")]
        names = self._names(partition)
        rows, size = self._execute(
            "SELECT count(*), (SELECT coalesce(sum(pg_total_relation_size(relid)), 0)"
            " FROM pg_partition_tree({literal})) FROM {partition}",
            names | {"literal": sql.Literal(names["partition"].as_string(self.connection))},
        ).fetchone() or (0, 0)
        log.info("dropping %s: %s rows, %s bytes", partition.name, rows, size)
        with self.connection.transaction():
            self._set_timeout("lock_timeout", LOCK_TIMEOUT)
            self._lock_log(names)
            self._execute("ALTER TABLE {parent} DETACH PARTITION {partition}", names)
            self._execute("DROP TABLE {partition}", names)
        return [replace(_unchanged(step), reason=f"{step.reason}: {rows} rows, {size} bytes", rows=rows)]

    def _delete_strays(self, step: Step) -> list[Done]:
        with self.connection.transaction():
            self._set_timeout("lock_timeout", LOCK_TIMEOUT)
            deleted = self._execute(
                partition_sql.DELETE_STRAYS,
                {"default": _identifier(step.partition)},
                {"before": step.before, "watermark": self.watermark},
            ).rowcount
        return [replace(_unchanged(step), reason=f"{step.reason}: {deleted} rows", rows=deleted)]

    def _lock_log(self, names: dict[str, sql.Composable]) -> None:
        self._execute("LOCK TABLE ONLY {parent} IN ACCESS EXCLUSIVE MODE", names)
        self._set_timeout("statement_timeout", HOLD_TIMEOUT)

    def _move(self, names: dict[str, sql.Composable], bounds: dict[str, Any]) -> int:
        if self.default is None:
            return 0
        columns = sql.SQL(", ").join(
            sql.Identifier(name) for (name,) in self.connection.execute(partition_sql.COLUMNS)
        )
        return self._execute(
            partition_sql.MOVE, names | {"columns": columns, "default": _identifier(self.default)}, bounds
        ).rowcount

    def _names(self, partition: Partition) -> dict[str, sql.Composable]:
        return {
            "parent": sql.Identifier(PARENT),
            "partition": _identifier(partition),
            "lower": sql.Literal(partition.lower),
            "upper": sql.Literal(partition.upper),
        }

    def _execute(
        self,
        statement: str,
        names: dict[str, sql.Composable],
        parameters: dict[str, Any] | None = None,
    ) -> psycopg.Cursor[Any]:
        return self.connection.execute(sql.SQL(statement).format(**names), parameters)

    def _set_timeout(self, name: str, value: str) -> None:
        self.connection.execute("SELECT set_config(%s, %s, true)", [name, value])


def _prepare(connection: psycopg.Connection) -> None:
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    connection.execute("SET timezone = 'UTC'")
    connection.execute("SET datestyle = 'ISO, YMD'")
    connection.execute("SET client_connection_check_interval = '2s'")


def _unarchived(partitions: Iterable[Partition], archive: Archive) -> dict[str, str]:
    """What of each is not archived, in words. That it can't be told now holds up nothing else."""
    found = {}
    for partition in partitions:
        try:
            days = archive.missing(partition)
        except PlatformError as error:
            found[partition.name] = f"the training corpus can't be looked at ({error})"
        else:
            if days:
                found[partition.name] = f"{days} of its days are not in the training corpus"
    return found


def _strays(connection: psycopg.Connection, default: Partition | None) -> Iterator[Stray]:
    if default is not None:
        statement = sql.SQL(partition_sql.STRAYS).format(default=_identifier(default))
        for row in connection.execute(statement):
            yield Stray(*row)


def _unplaceable(connection: psycopg.Connection, default: Partition | None) -> int:
    if default is None:
        return 0
    ((rows,),) = connection.execute(sql.SQL(partition_sql.UNPLACEABLE).format(default=_identifier(default)))
    return int(rows)


def _unchanged(step: Step) -> Done:
    return Done(
        step.action,
        step.partition.name,
        step.reason,
        of_default=step.before is not None,
        unfolded=step.unfolded,
        failed=step.blocked,
    )


def _identifier(partition: Partition) -> sql.Identifier:
    return sql.Identifier(partition.schema, partition.name)


def _line(error: psycopg.Error | PlatformError) -> str:
    if isinstance(error, PlatformError):
        return str(error)
    return error.diag.message_primary or type(error).__name__
