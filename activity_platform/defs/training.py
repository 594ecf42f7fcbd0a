"""The training corpus in Dagster: a partition a day, exported on a schedule. Loaded where there is a bucket.

Parquet takes a second to import, which only runs that touch files should pay: each imports it itself.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import psycopg

from activity_platform.defs.activity import GROUP, activity_events, interaction_edges
from activity_platform.defs.jobs import JobClass, every, job_tags
from activity_platform.defs.pages import asset_check
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import postgres
from activity_platform.settings import Settings

if TYPE_CHECKING:
    from activity_platform.activity.corpus_export import DayExport, ExportResult

#: Earlier days are exported, too; the UI shows those since the platform's first year.
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
#: Twice the schedule's time, in which a day may wait for its export.
GRACE = timedelta(hours=12)
MAX_RUNTIME_SECONDS = 3 * 3600  # a backlog of months
DAYS_NAMED = 10


@dg.asset(
    deps=[activity_events, interaction_edges],
    group_name=GROUP,
    kinds={"postgres", "s3", "parquet"},
    partitions_def=dg.DailyPartitionsDefinition(start_date=FIRST_DAY),
    freshness_policy=dg.FreshnessPolicy.time_window(
        warn_window=timedelta(hours=13), fail_window=timedelta(hours=25)
    ),
)
def activity_training_corpus(
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult[None]:
    """Each whole day of the log as a Parquet file for training, which outlives the day's month.

    A run of a partition exports that day; a run without one, all days that are missing or were changed.
    """
    from activity_platform.activity.corpus_export import export_days
    from activity_platform.activity.corpus_location import corpus_of

    result = export_days(
        settings.database_url, corpus_of(settings), _asked(context), tell=lambda day: _log(context, day)
    )
    for event in _days_to_show(context, result):
        context.log_event(event)
    return dg.MaterializeResult(
        metadata={
            "days_written": result.written,
            "days_unchanged": result.unchanged,
            "rows_written": result.rows,
            "late_events": sum(day.late for day in result.days),
        }
    )


@asset_check(asset=activity_training_corpus)
def corpus_equals_the_log(settings: SettingsResource) -> dg.AssetCheckResult:
    """Each whole day that the log still holds lies in the corpus with the same rows."""
    from activity_platform.activity.corpus_checks import check_days
    from activity_platform.activity.corpus_location import corpus_of

    with _connection(settings) as connection:
        found = check_days(connection, corpus_of(settings), grace=GRACE)
    return dg.AssetCheckResult(
        passed=found.passed,
        metadata={
            "days_compared": found.compared,
            "rows_in_the_log": found.rows,
            "days_that_differ": len(found.differing),
            "first_of_them": _named(found.differing),
        },
    )


@asset_check(asset=activity_training_corpus)
def corpus_has_no_gaps(settings: SettingsResource) -> dg.AssetCheckResult:
    """No month of which events were folded is missing from log and corpus both."""
    from activity_platform.activity.corpus_checks import check_gaps
    from activity_platform.activity.corpus_location import corpus_of

    with _connection(settings) as connection:
        found = check_gaps(connection, corpus_of(settings))
    return dg.AssetCheckResult(
        passed=found.passed,
        metadata={
            "days": found.days,
            "days_between_without_a_file": found.days_without,
            "missing_months": _named(found.months),
        },
    )


activity_training_corpus_job = dg.define_asset_job(
    "activity_training_corpus_job",
    selection=dg.AssetSelection.assets(activity_training_corpus),
    description="Exports whole days of the log for training, and again where rows came to them.",
    tags=job_tags(JobClass.MAINTENANCE, max_runtime_seconds=MAX_RUNTIME_SECONDS),
)


def _asked(context: dg.AssetExecutionContext) -> list[date] | None:
    if context.has_partition_key or context.has_partition_key_range:
        return [date.fromisoformat(key) for key in context.partition_keys]
    return None


def _log(context: dg.AssetExecutionContext, day: "DayExport") -> None:
    context.log.info("%s: %s events, %s", day.day, day.rows, "written" if day.written else "unchanged")


def _days_to_show(
    context: dg.AssetExecutionContext, result: "ExportResult"
) -> Iterator[dg.AssetMaterialization]:
    """A materialization for each day that was written, or that the UI does not know yet.

    The days that a run was asked for get theirs from Dagster; this one, before it, has the day's numbers.
    """
    known = context.instance.get_materialized_partitions(context.asset_key)
    for day in result.days:
        if day.day >= FIRST_DAY.date() and (day.written or str(day.day) not in known):
            yield dg.AssetMaterialization(
                asset_key=context.asset_key,
                partition=str(day.day),
                metadata={"rows": day.rows, "late_events": day.late, "bytes": day.bytes},
            )


def _named(days: tuple[date, ...]) -> str:
    return ", ".join(str(day) for day in days[:DAYS_NAMED]) or "none"


def _connection(settings: Settings) -> psycopg.Connection:
    return postgres.connect(settings.database_url, application_name="activity-platform checks")


def definitions() -> dg.Definitions:
    """The asset, its checks, job and schedule."""
    return dg.Definitions(
        assets=[activity_training_corpus],
        asset_checks=[corpus_equals_the_log, corpus_has_no_gaps],
        jobs=[activity_training_corpus_job],
        schedules=[
            every("23 */6 * * *", activity_training_corpus_job.name, "Exports whole days for training.")
        ],
    )
