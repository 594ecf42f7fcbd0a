"""What must always hold of the training corpus, measured. Each result says whether it `passed`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import psycopg

from activity_platform.activity import corpus_sql, rollup_sql
from activity_platform.activity.corpus import Corpus
from activity_platform.activity.corpus_export import count_days, find_exported, first_open_day, midnight
from activity_platform.activity.rollup import read_watermark


@dataclass(frozen=True)
class Days:
    """Whole days that the log still holds: how many, and which the corpus does not hold as the log does."""

    compared: int
    rows: int
    differing: tuple[date, ...]

    @property
    def passed(self) -> bool:
        return not self.differing


@dataclass(frozen=True)
class Gaps:
    """Months (their first days) of which events went into edges and neither log nor corpus has any.

    `days` have a file. `days_without` lie between the first and the last of them and have none: nothing
    happened then, or a file was deleted by hand.
    """

    months: tuple[date, ...]
    days: int
    days_without: int

    @property
    def passed(self) -> bool:
        return not self.months


def check_days(connection: psycopg.Connection, files: Corpus, *, grace: timedelta) -> Days:
    """Compares row counts and sums of ids. What the watermark passed less than `grace` ago is left out: its
    export is still to come."""
    end = midnight(first_open_day(read_watermark(connection) - grace))
    logged = count_days(connection, None, end)
    differing = tuple(day for day, log in logged.items() if not find_exported(files, day, log))
    return Days(len(logged), sum(log.rows for log in logged.values()), differing)


def check_gaps(connection: psycopg.Connection, files: Corpus) -> Gaps:
    """Compares the months of the fold's slices with those of log and corpus."""
    days = files.days()
    here = {day.replace(day=1) for day in (*days, *count_days(connection, None, None))}
    folded = connection.execute(corpus_sql.FOLDED_MONTHS, {"name": rollup_sql.STATE}).fetchall()
    between = (days[-1] - days[0]).days + 1 if days else 0
    return Gaps(
        months=tuple(month for (month,) in folded if month not in here),
        days=len(days),
        days_without=between - len(days),
    )
