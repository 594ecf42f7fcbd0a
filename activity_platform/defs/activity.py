"""Activity in Dagster: the log as an observed asset, edges and partitions as scheduled ones."""

from datetime import timedelta

import dagster as dg

from activity_platform.activity import log_size, partitions, rollup
from activity_platform.defs.jobs import JobClass, every, job_tags
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import postgres

GROUP = "activity"

activity_events = dg.AssetSpec(
    "activity_events",
    group_name=GROUP,
    kinds={"postgres"},
    description=(
        "Every interaction event, append-only, in monthly partitions. The HTTP app writes it; a run"
        " observes its size every five minutes."
    ),
)


@dg.asset(
    deps=[activity_events],
    group_name=GROUP,
    kinds={"postgres"},
    freshness_policy=dg.FreshnessPolicy.time_window(
        warn_window=timedelta(minutes=5), fail_window=timedelta(minutes=15)
    ),
)
def interaction_edges(settings: SettingsResource) -> dg.MaterializeResult[None]:
    """Each user's affinity to what was acted on: the sum of all events, read by the ranker."""
    result = rollup.fold(settings.database_url, lag_seconds=settings.rollup_lag_seconds)
    return dg.MaterializeResult(
        metadata={
            "events_folded": result.events,
            "edges_touched": result.edges,
            "slices": result.slices,
            "lag_seconds": result.lag_seconds,
            "window_start": dg.MetadataValue.timestamp(result.lower),
            "watermark": dg.MetadataValue.timestamp(result.watermark),
            "busy": result.busy,
        }
    )


@dg.asset(group_name=GROUP, kinds={"postgres"})
def activity_event_partitions(
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult[None]:
    """The months of the log: coming ones are there before they are needed, old ones are dropped."""
    result = partitions.maintain(
        settings.database_url,
        now=None,
        retention_days=settings.retention_days,
        ahead=settings.partitions_ahead,
        archive_before_drop=settings.archive_before_drop,
    )
    for step in result.steps:
        context.log.info("%s %s: %s", step.action, step.partition, step.reason)
    if result.failed:
        raise dg.Failure(f"{result.failed} steps failed; the log above says which, the others are done")
    return dg.MaterializeResult(
        metadata={
            "created": result.created,
            "rows_moved_out_of_default": result.moved_rows,
            "dropped": result.dropped,
            "kept_because_unfolded": result.kept_unfolded,
            "skipped_on_lock_timeout": result.skipped,
        }
    )


@dg.op(out=dg.Out(dg.Nothing))
def observe_activity_events(context: dg.OpExecutionContext, settings: SettingsResource) -> None:
    """Records how large the log is."""
    with postgres.connect(settings.database_url, application_name="activity-platform observe") as connection:
        seen = log_size.measure(connection)
    context.log_event(
        dg.AssetObservation(
            asset_key=activity_events.key,
            metadata={
                "bytes": seen.bytes,
                "rows_estimated": seen.rows_estimated,
                "partitions": seen.partitions,
            },
        )
    )


@dg.job(tags=job_tags(JobClass.OBSERVATION))
def observe_activity_events_job() -> None:
    """Looks at the activity log."""
    observe_activity_events()


interaction_edges_job = dg.define_asset_job(
    "interaction_edges_job",
    selection=dg.AssetSelection.assets(interaction_edges),
    description="Folds new events into edges.",
    tags=job_tags(JobClass.FOLD),
)

activity_event_partitions_job = dg.define_asset_job(
    "activity_event_partitions_job",
    selection=dg.AssetSelection.assets(activity_event_partitions),
    description="Provisions coming months of the log and drops old ones.",
    tags=job_tags(JobClass.MAINTENANCE),
)


def definitions() -> dg.Definitions:
    """The assets, jobs and schedules of activity."""
    return dg.Definitions(
        assets=[activity_events, interaction_edges, activity_event_partitions],
        jobs=[interaction_edges_job, activity_event_partitions_job, observe_activity_events_job],
        schedules=[
            every("* * * * *", interaction_edges_job.name, "Folds once a minute."),
            every("17 * * * *", activity_event_partitions_job.name, "Maintains the months once an hour."),
            every("*/5 * * * *", observe_activity_events_job.name, "Looks at the log every five minutes."),
        ],
    )
