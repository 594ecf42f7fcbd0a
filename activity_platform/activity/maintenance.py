"""Partition maintenance after the platform's settings, for every place that starts it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from activity_platform.activity import partitions
from activity_platform.activity.partition_plan import Partition
from activity_platform.activity.partitions import MaintenanceResult
from activity_platform.settings import Need, Settings

if TYPE_CHECKING:
    from activity_platform.activity.corpus_archive import CorpusArchive


def maintain_log(
    settings: Settings, *, now: datetime | None = None, dry_run: bool = False
) -> MaintenanceResult:
    """See `partitions.maintain`. Raises `UsageError` when ARCHIVE_BEFORE_DROP is on without S3_BUCKET."""
    if settings.must_archive:
        settings.check([Need.OBJECTS])
    return partitions.maintain(
        settings.database_url,
        now=now,
        retention_days=settings.retention_days,
        ahead=settings.partitions_ahead,
        archive_before_drop=settings.must_archive,
        archive=_Archive(settings) if settings.must_archive else None,
        dry_run=dry_run,
    )


@dataclass(frozen=True)
class _Archive:
    """The training corpus. Parquet and S3 take a second to import, which only a month that goes costs."""

    settings: Settings

    def missing(self, partition: Partition) -> int:
        return self._corpus().missing(partition)

    def store(self, partition: Partition) -> bool:
        return self._corpus().store(partition)

    def _corpus(self) -> CorpusArchive:
        from activity_platform.activity.corpus_archive import CorpusArchive
        from activity_platform.activity.corpus_location import corpus_of

        return CorpusArchive(self.settings.database_url, corpus_of(self.settings))
