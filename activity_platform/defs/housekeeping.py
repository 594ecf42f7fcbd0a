"""Housekeeping in Dagster: what is old is forgotten once an hour, so much at a time."""

from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import dagster as dg

from activity_platform.activity import retention as activity_retention
from activity_platform.audience import retention as audience_retention
from activity_platform.defs import run_history
from activity_platform.defs.jobs import JobClass, every, job_tags
from activity_platform.defs.resources import SettingsResource
from activity_platform.failures import UsageError
from activity_platform.gateways import object_store, postgres

GROUP = "platform"
APPLICATION = "activity-platform housekeeping"

#: A run's share: seconds of work. What is left is for the next hour, and `more` tells so.
MOST_ROWS = 50_000
MOST_IMPORTS = 2_000  # each with two files
MOST_RUNS = 10_000
PATIENCE_SECONDS = 120.0


@dg.asset(group_name=GROUP, kinds={"postgres"})
def activity_history(settings: SettingsResource) -> dg.MaterializeResult[None]:
    """Idempotency keys of the last day, and what each slice of the fold added up to."""
    with closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection:
        forgotten = activity_retention.forget(connection, now=datetime.now(UTC), most=MOST_ROWS)
    return dg.MaterializeResult(metadata=asdict(forgotten))


@dg.asset(group_name=GROUP, kinds={"postgres", "s3"})
def message_history(settings: SettingsResource) -> dg.MaterializeResult[None]:
    """Which messages are known, and past imports with their files."""
    store = object_store.ObjectStore(object_store.s3_client(settings.s3_endpoint_url), settings.s3_bucket)
    with closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection:
        forgotten = audience_retention.forget(
            connection,
            store.delete,
            now=datetime.now(UTC),
            message_days=settings.message_days,
            import_days=settings.import_days,
            most=MOST_IMPORTS,
        )
    return dg.MaterializeResult(metadata=asdict(forgotten))


@dg.asset(group_name=GROUP, kinds={"postgres"})
def dagster_history(
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult[None]:
    """Dagster's own runs with their events and logs. What sensors count and assets show stays."""
    if not settings.dagster_postgres_url:
        raise UsageError("DAGSTER_POSTGRES_URL is not set: give it to the code server, as to the daemon")
    with closing(postgres.connect(settings.dagster_postgres_url, application_name=APPLICATION)) as connection:
        forgotten = run_history.forget(
            context.instance,
            connection,
            before=datetime.now(UTC) - timedelta(days=settings.history_days),
            most=MOST_RUNS,
            patience_seconds=PATIENCE_SECONDS,
        )
    return dg.MaterializeResult(metadata=asdict(forgotten))


ASSETS = {"activity": [activity_history], "audience": [message_history]}


def definitions(domains: tuple[str, ...]) -> dg.Definitions:
    """The histories of those domains and of Dagster, and the job that forgets."""
    assets = [dagster_history, *(asset for domain in domains for asset in ASSETS.get(domain, []))]
    job = dg.define_asset_job(
        "housekeeping_job",
        selection=dg.AssetSelection.assets(*assets),
        description="Forgets what is old.",
        tags=job_tags(JobClass.HOUSEKEEPING),
    )
    return dg.Definitions(
        assets=assets,
        jobs=[job],
        schedules=[every("41 * * * *", job.name, "Forgets what is old, once an hour.")],
    )
