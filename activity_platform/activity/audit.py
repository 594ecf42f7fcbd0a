"""Recomputes the edges from all events there are, and says where the live ones differ.

    log, up to the watermark  ┐
                              ├→  edges as they should be  ↔  interaction_edges
    corpus, where it has more ┘

Everything in the database is read in one snapshot, in which watermark, log, slices and edges agree; a fold
beside it goes on. Only what can be known is compared. An event that came late may be in no edge. Where events
were dropped without an archive, edges that began before that are compared with what is left: they hold at
least so much. The same goes for edges older than a window of some days.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import class_row

from activity_platform.activity import audit_sql, rollup_sql
from activity_platform.activity.audit_window import Filed, Window, read_window
from activity_platform.failures import TransientFailure
from activity_platform.gateways import postgres

if TYPE_CHECKING:
    from activity_platform.activity.corpus import Corpus

APPLICATION = "activity-platform audit"
SESSION = {"timezone": "UTC", "datestyle": "ISO, YMD", "work_mem": "128MB", "jit": "off"}
SAMPLE_PAGES = 20


@dataclass(frozen=True)
class Difference:
    """Where a live edge is not what its events say. `kind` is `missing` or `surplus`, with event counts, or
    the column that differs."""

    kind: str
    actor_id: str
    edge_type: str
    target_type: str
    target_id: str
    expected: str | None
    found: str | None


@dataclass(frozen=True)
class Scope:
    """What is compared: the edges that events of `(since, watermark]` made.

    `partly` of the `edges` began before, and are compared with a part of their events. `events` were folded,
    `late` ones may be in an edge or not. `unknown` events were folded, and neither log nor corpus has them;
    the window then begins after the last month that lacks some.
    """

    since: datetime
    watermark: datetime
    edges: int
    partly: int
    events: int
    late: int
    unknown: int


@dataclass(frozen=True)
class Audit:
    """The scope, and the differences as they are found: to be read while the audit is open."""

    scope: Scope
    differences: Iterator[Difference]


@contextmanager
def audit_edges(database_url: str, files: Corpus | None, *, days: int | None = None) -> Iterator[Audit]:
    """Compares all edges with all of history, or with the last `days` before the watermark.

    Without `files` the log alone is read. Raises `TransientFailure` when an erasure changed files meanwhile.
    """
    with _snapshot(database_url) as connection:
        window = read_window(connection, timedelta(days=days) if days else None)
        filed = _read_files(database_url, connection, window, files) if files else Filed()
        yield _audit(connection, window, filed, actors=None)


@contextmanager
def audit_sample(database_url: str, *, days: int, most: int) -> Iterator[Audit]:
    """Compares edges of at most twice `most` actors, chosen at random, with the log's last `days`."""
    with _snapshot(database_url) as connection:
        window = read_window(connection, timedelta(days=days))
        yield _audit(connection, window, Filed(), actors=_sample(connection, window, most))


@contextmanager
def _snapshot(database_url: str) -> Iterator[psycopg.Connection]:
    with (
        postgres.outages_named(),
        postgres.connect(database_url, application_name=APPLICATION) as connection,
    ):
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        with connection.transaction(force_rollback=True):
            connection.execute(audit_sql.CREATE_PARTS)
            connection.execute(audit_sql.CREATE_LATE)
            yield connection


def _read_files(database_url: str, connection: psycopg.Connection, window: Window, files: Corpus) -> Filed:
    from activity_platform.activity.audit_files import read_files  # Parquet takes a second to import

    filed = read_files(connection, files, window)
    with postgres.connect(database_url, application_name=APPLICATION) as now:
        erasures = now.execute(audit_sql.ERASURES, {"begun": window.begun}).fetchall()
    if filed.days and any(ended for _, ended in erasures):
        raise TransientFailure(
            "an erasure ended while files were read, which may be of either time: try again"
        )
    return replace(filed, leaving=tuple(user for user, _ in erasures))


def _sample(connection: psycopg.Connection, window: Window, most: int) -> list[str]:
    ((pages,),) = connection.execute(audit_sql.EDGE_PAGES)
    values = {
        "since": window.since,
        "watermark": window.watermark,
        "seed": str(random.random()),  # noqa: S311  (any actors will do)
        "percent": min(100.0, 100 * SAMPLE_PAGES / max(1, pages)),
        "most": most,
    }
    return [actor for (actor,) in connection.execute(audit_sql.SAMPLE_ACTORS, values)]


def _audit(
    connection: psycopg.Connection, window: Window, filed: Filed, *, actors: Sequence[str] | None
) -> Audit:
    values: dict[str, Any] = {
        "name": rollup_sql.STATE,
        "since": window.since,
        "watermark": window.watermark,
        "bounds": list(window.bounds) or [window.watermark],
        "filed": list(filed.days),
        "actors": actors,
        "leaving": list(filed.leaving),
    }
    logged: Counter[int] = Counter(dict(connection.execute(audit_sql.COUNT_SEGMENTS, values).fetchall()))
    late = _find_late(connection, window, filed, logged, values)
    connection.execute(audit_sql.ADD_LOG, values)
    connection.execute("ANALYZE edge_part")
    known = logged + Counter(filed.folded) - late
    unknown = _lacking(connection, window, known)
    start = max(unknown) + 1 if unknown else 0
    values |= {"since": window.span(start)[0], "from_segment": start}
    ((edges, partly),) = connection.execute(audit_sql.COUNT_EDGES, values)
    scope = Scope(
        since=values["since"],
        watermark=window.watermark,
        edges=edges,
        partly=partly,
        events=known.total(),
        late=late.total() + filed.late,
        unknown=sum(unknown.values()),
    )
    return Audit(scope, _differences(connection, values))


def _find_late(
    connection: psycopg.Connection,
    window: Window,
    filed: Filed,
    logged: Mapping[int, int],
    values: dict[str, Any],
) -> Counter[int]:
    """Marks the log's late events, and counts them by segment. Slices are looked into only where there is
    more than they folded."""
    for segment, events in logged.items():
        lower, upper = window.span(segment)
        folded = window.folded[segment] if segment < len(window.folded) else 0
        if filed.hold_month_of(upper):
            connection.execute(audit_sql.ALL_LATE, values | {"segment": segment})
        elif events + filed.folded.get(segment, 0) > folded:
            span = {"segment": segment, "lower": lower, "upper": upper}
            connection.execute(audit_sql.FIND_LATE, values | span)
    return Counter(dict(connection.execute(audit_sql.COUNT_LATE).fetchall()))


def _lacking(connection: psycopg.Connection, window: Window, known: Mapping[int, int]) -> dict[int, int]:
    """How many events of each segment were folded and are nowhere. Erasures took from the slices what the log
    held, and noted together what was older: so many may be missing."""
    lacking = {
        segment: folded - known.get(segment, 0)
        for segment, folded in enumerate(window.folded)
        if folded > known.get(segment, 0)
    }
    ((erased,),) = connection.execute(audit_sql.ERASED_BEFORE, {"erased": rollup_sql.ERASED})
    return lacking if sum(lacking.values()) > erased else {}


def _differences(connection: psycopg.Connection, values: dict[str, Any]) -> Iterator[Difference]:
    with connection.cursor(name="differences", row_factory=class_row(Difference)) as cursor:
        cursor.execute(audit_sql.DIFFERENCES, values)
        yield from cursor
