"""Partition maintenance after the platform's settings, for every place that starts it."""

from __future__ import annotations

from datetime import datetime

from activity_platform.activity import partitions
from activity_platform.activity.partitions import Archive, MaintenanceResult
from activity_platform.settings import Need, Settings


def maintain_log(
    settings: Settings, *, now: datetime | None = None, dry_run: bool = False
) -> MaintenanceResult:
    """See `partitions.maintain`. Raises `UsageError` when ARCHIVE_BEFORE_DROP is on without S3_BUCKET."""
    return partitions.maintain(
        settings.database_url,
        now=now,
        retention_days=settings.retention_days,
        ahead=settings.partitions_ahead,
        archive_before_drop=settings.archive_before_drop,
        archive=_archive(settings) if settings.archive_before_drop else None,
        dry_run=dry_run,
    )


def _archive(settings: Settings) -> Archive:
    # Parquet and S3 take a second to import, and activity alone needs neither.
    from activity_platform.activity.archive import MonthArchive
    from activity_platform.gateways.object_store import ObjectStore, s3_client

    settings.check([Need.OBJECTS])
    return MonthArchive(
        settings.database_url, ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
    )
