"""Activity in Dagster: the log as an observed asset, edges and partitions as scheduled ones."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import psycopg

from activity_platform.activity import audit, checks, log_size, rollup
from activity_platform.activity.maintenance import maintain_log
from activity_platform.defs.jobs import JobClass, every, job_tags
from activity_platform.defs.pages import asset_check
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import postgres
from activity_platform.settings import Settings

GROUP = "activity"
LAG_SECONDS_AT_MOST = 300  # five times the schedule's minute
SAMPLE_DAYS, SAMPLE_ACTORS = 1, 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # the watermark before the first fold; no event is older

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
            "lag_seconds": result.lag_seconds,
            "watermark": dg.MetadataValue.timestamp(result.watermark),
            "window_start": _start(result.lower),
            "slices": result.slices,
            "rows_waiting": result.waiting,
            "late_events": result.late,
            "oldest_open_writer_seconds": result.oldest_writer_seconds or 0.0,
            "held_by": str(result.bound_reason),
        }
    )


@asset_check(asset=interaction_edges)
def edges_keep_up(settings: SettingsResource) -> dg.AssetCheckResult:
    """The watermark is at most five minutes behind the clock, and not ahead of it."""
    with _connection(settings) as connection:
        lag = checks.check_lag(connection, most_seconds=LAG_SECONDS_AT_MOST)
    return dg.AssetCheckResult(passed=lag.passed, metadata={"lag_seconds": lag.seconds})


@asset_check(asset=interaction_edges)
def edges_hold_every_event(settings: SettingsResource) -> dg.AssetCheckResult:
    """Log, fold and edges agree on the events of the last minutes."""
    with _connection(settings) as connection:
        found = checks.check_conservation(connection)
    return dg.AssetCheckResult(
        passed=found.passed,
        metadata={
            "window_start": _start(found.lower),
            "window_end": dg.MetadataValue.timestamp(found.upper),
            "events_in_the_log": found.logged,
            "events_folded": found.folded,
            "missing_from_their_edge": found.missing,
            "not_in_the_log": found.extra,
        },
    )


@asset_check(asset=interaction_edges)
def no_event_came_late(settings: SettingsResource) -> dg.AssetCheckResult:
    """No event of the last hour is stamped where the fold had already been; such an event is in no edge."""
    with _connection(settings) as connection:
        late = checks.check_late(connection)
    return dg.AssetCheckResult(
        passed=late.passed, severity=dg.AssetCheckSeverity.WARN, metadata={"late_events": late.events}
    )


@asset_check(asset=interaction_edges)
def edges_equal_their_events(settings: SettingsResource) -> dg.AssetCheckResult:
    """Edges of some actors, chosen at random, are what their events of the last day make them."""
    with audit.audit_sample(settings.database_url, days=SAMPLE_DAYS, most=SAMPLE_ACTORS) as found:
        kinds = Counter(difference.kind for difference in found.differences)
    return dg.AssetCheckResult(
        passed=not kinds,
        metadata={
            "edges_compared": found.scope.edges,
            "differences": kinds.total(),
            "kinds": ", ".join(sorted(kinds)) or "none",
            "window_start": _start(found.scope.since),
            "late_events": found.scope.late,
            "events_that_are_nowhere": found.scope.unknown,
        },
    )


@dg.asset(group_name=GROUP, kinds={"postgres"})
def activity_event_partitions(
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult[None]:
    """The months of the log: coming ones are there before they are needed, old ones are dropped."""
    result = maintain_log(settings)
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


@asset_check(asset=activity_event_partitions)
def months_are_in_place(settings: SettingsResource) -> dg.AssetCheckResult:
    """Coming months have their partition, DEFAULT is empty, and nothing is a day overdue for dropping."""
    with _connection(settings) as connection:
        months = checks.check_months(
            connection, now=None, retention_days=settings.retention_days, ahead=settings.partitions_ahead
        )
    return dg.AssetCheckResult(
        passed=months.passed,
        metadata={
            "missing": ", ".join(months.missing) or "none",
            "rows_in_default": months.default_rows,
            "overdue": ", ".join(months.overdue) or "none",
        },
    )


@dg.op(out=dg.Out(dg.Nothing))
def observe_activity_events(context: dg.OpExecutionContext, settings: SettingsResource) -> None:
    """Records how large the log is."""
    with _connection(settings) as connection:
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
    selection=dg.AssetSelection.assets(interaction_edges).without_checks()
    | dg.AssetSelection.checks(edges_keep_up, edges_hold_every_event, no_event_came_late),
    description="Folds new events into edges.",
    tags=job_tags(JobClass.FOLD),
)

edges_audit_job = dg.define_asset_job(
    "edges_audit_job",
    selection=dg.AssetSelection.checks(edges_equal_their_events),
    description="Compares edges of some actors with their events.",
    tags=job_tags(JobClass.OBSERVATION),
)

activity_event_partitions_job = dg.define_asset_job(
    "activity_event_partitions_job",
    selection=dg.AssetSelection.assets(activity_event_partitions),
    description="Provisions coming months of the log and drops old ones.",
    tags=job_tags(JobClass.MAINTENANCE),
)


def _connection(settings: Settings) -> psycopg.Connection:
    return postgres.connect(settings.database_url, application_name="activity-platform checks")


def _start(of_window: datetime) -> dg.MetadataValue[Any]:
    if of_window <= EPOCH:
        return dg.MetadataValue.text("the first event")
    return dg.MetadataValue.timestamp(of_window)


def definitions() -> dg.Definitions:
    """The assets, jobs and schedules of activity."""
    return dg.Definitions(
        assets=[activity_events, interaction_edges, activity_event_partitions],
        asset_checks=[
            *(edges_keep_up, edges_hold_every_event, no_event_came_late, edges_equal_their_events),
            months_are_in_place,
        ],
        jobs=[
            *(interaction_edges_job, edges_audit_job),
            *(activity_event_partitions_job, observe_activity_events_job),
        ],
        schedules=[
            every("* * * * *", interaction_edges_job.name, "Folds once a minute."),
            every("47 * * * *", edges_audit_job.name, "Compares some edges with their events once an hour."),
            every("17 * * * *", activity_event_partitions_job.name, "Maintains the months once an hour."),
            every("*/5 * * * *", observe_activity_events_job.name, "Looks at the log every five minutes."),
        ],
    )
