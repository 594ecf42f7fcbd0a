"""What maintenance asks before it drops a month: is each day of it in the training corpus?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import psycopg

from activity_platform.activity import corpus_sql
from activity_platform.activity.corpus import Corpus, Log
from activity_platform.activity.corpus_export import (
    CALENDAR,
    count_days,
    export_days,
    find_exported,
    midnight,
)
from activity_platform.activity.partition_plan import Partition
from activity_platform.failures import PermanentFailure
from activity_platform.gateways import postgres


@dataclass(frozen=True)
class CorpusArchive:
    """Archives partitions of the log as days of the corpus."""

    database_url: str
    files: Corpus

    def missing(self, partition: Partition) -> int:
        """How many of its days have events that the corpus has not. Changes nothing."""
        return len(self._missing_days(partition))

    def store(self, partition: Partition) -> bool:
        """Exports those days. Returns whether the corpus has all of them now."""
        if days := self._missing_days(partition):
            export_days(self.database_url, self.files, days)
        return not days or not self._missing_days(partition)

    def _missing_days(self, partition: Partition) -> list[date]:
        with (
            postgres.outages_named(),
            postgres.connect(self.database_url, application_name="activity-platform corpus") as connection,
        ):
            days = _count(connection, partition)
        return [day for day, log in days.items() if not find_exported(self.files, day, log)]


def _count(connection: psycopg.Connection, partition: Partition) -> dict[date, Log]:
    if partition.lower is None:
        ((undated,),) = connection.execute(corpus_sql.COUNT_UNDATED, {"start": CALENDAR})
        if undated:
            raise PermanentFailure(
                f"{partition.name} has {undated} events stamped before the year 2, under which nothing can be"
                " archived: correct their created_at, or delete them"
            )
    # Whole days, also where a bound lies within one: the corpus counts whole days.
    start = partition.lower and midnight(partition.lower.astimezone(UTC).date())
    end = partition.upper and _midnight_after(partition.upper)
    return count_days(connection, start, end)


def _midnight_after(moment: datetime) -> datetime:
    day = moment.astimezone(UTC).date()
    return midnight(day) if moment == midnight(day) else midnight(day + timedelta(days=1))
