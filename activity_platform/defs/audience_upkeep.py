"""What keeps audiences in order beside the commands: dead entries, silent runs, unsent firings, checks."""

from contextlib import closing
from datetime import UTC, datetime

import dagster as dg
import psycopg

from activity_platform.audience import firings, overview, triggers, worker
from activity_platform.audience.messages import AUDIENCE_QUEUES
from activity_platform.audience.order import read_heads
from activity_platform.audience.services import Services
from activity_platform.defs import pages
from activity_platform.defs.audience_assets import GROUP, audience_imports, audience_members
from activity_platform.defs.jobs import JobClass, every, is_under_way, job_tags
from activity_platform.defs.pages import asset_check
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import postgres, queue
from activity_platform.settings import Settings


@dg.op(out=dg.Out(dg.Nothing))
def bury_undecodable(context: dg.OpExecutionContext, audience_services: dg.ResourceParam[Services]) -> None:
    """Moves entries that are no messages to the dead letters."""
    for entry in read_heads(audience_services.queues).undecodable:
        result = worker.run_message(audience_services, entry.queue, entry.entry_id)
        context.log.warning("%s %s is a dead letter: %s", result.queue, result.entry_id, result.error)


@dg.job(tags=job_tags(JobClass.HOUSEKEEPING))
def sweep_audience_queues_job() -> None:
    """Clears the audience queues of entries that are no messages."""
    bury_undecodable()


@dg.op(out=dg.Out(dg.Nothing))
def end_silent_runs(context: dg.OpExecutionContext, settings: SettingsResource) -> None:
    """Reports runs as failed whose worker is dead, so that they hold no audience back."""
    for run_id in _silent(context.instance, settings):
        run = context.instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            context.instance.report_run_failed(run, "its worker gave no sign of life for two minutes")


@dg.job(tags=job_tags(JobClass.OBSERVATION))
def end_silent_audience_runs_job() -> None:
    """Ends audience runs whose process was killed without a word."""
    end_silent_runs()


@dg.schedule(
    job=end_silent_audience_runs_job,
    cron_schedule="* * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description=pages.starter(
        "Looks once a minute for audience runs whose worker is dead, and has them reported failed.",
        "silent_audience_runs_schedule",
    ),
)
def silent_audience_runs_schedule(
    context: dg.ScheduleEvaluationContext, settings: SettingsResource
) -> dg.RunRequest | dg.SkipReason:
    if is_under_way(context.instance, end_silent_audience_runs_job.name):
        return dg.SkipReason("they are being ended")
    if not _silent(context.instance, settings):
        return dg.SkipReason("every worker gives signs of life")
    return dg.RunRequest()


@dg.asset(group_name=GROUP, kinds={"postgres", "redis"}, deps=[audience_members])
def trigger_firings(settings: SettingsResource) -> dg.MaterializeResult[None]:
    """What rules fired for who came into an audience or left it, sent to the stream of the same name."""
    now = datetime.now(UTC)
    with closing(queue.connect(settings.redis_url)) as client, _connection(settings) as connection:
        sent = firings.publish_firings(connection, now=now, stream=queue.Queues(client))
        waiting = firings.unpublished(connection, now=now)
        rules = triggers.list_rules(connection)
    return dg.MaterializeResult(
        metadata={
            "published": sent.published,
            "unpublished": waiting.count,
            "oldest_unpublished_seconds": waiting.oldest_seconds,
            "rules": len(rules),
            "rules_with_a_problem": sum(rule.problem is not None for rule in rules),
            "firings_by_rule": dg.MetadataValue.table(
                [dg.TableRecord(_cells(rule)) for rule in rules], schema=_RULE_COLUMNS
            ),
        }
    )


_RULE_COLUMNS = dg.TableSchema(
    columns=[
        *(dg.TableColumn(name, "int") for name in ("rule", "audience")),
        dg.TableColumn("event", "string"),
        dg.TableColumn("enabled", "bool"),
        *(dg.TableColumn(name, "int") for name in ("firings", "unpublished")),
        dg.TableColumn("problem", "string"),
    ]
)


def _cells(rule: triggers.RuleReport) -> dict[str, str | int | bool]:
    return {
        "rule": rule.id,
        "audience": rule.audience_id,
        "event": rule.on_event,
        "enabled": rule.enabled,
        "firings": rule.firings,
        "unpublished": rule.unpublished,
        "problem": rule.problem or "",
    }


trigger_firings_job = dg.define_asset_job(
    "trigger_firings_job",
    selection=dg.AssetSelection.assets(trigger_firings),
    description="Sends what was fired and not yet sent.",
    tags=job_tags(JobClass.HOUSEKEEPING),
)


@dg.schedule(
    job=trigger_firings_job,
    cron_schedule="* * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description=pages.starter(
        "Sends firings that a run left unsent, once a minute if there are any; else once an hour.",
        "trigger_firings_schedule",
    ),
)
def trigger_firings_schedule(
    context: dg.ScheduleEvaluationContext, settings: SettingsResource
) -> dg.RunRequest | dg.SkipReason:
    if is_under_way(context.instance, trigger_firings_job.name):
        return dg.SkipReason("they are being sent")
    with _connection(settings) as connection:
        waiting = firings.unpublished(connection, now=datetime.now(UTC)).count
    if waiting or context.scheduled_execution_time.minute == 0:
        return dg.RunRequest()
    return dg.SkipReason("every firing is sent")


@asset_check(asset=audience_members.key)
def members_are_as_told(settings: SettingsResource) -> dg.AssetCheckResult:
    """`info.members` is the number of members, in the audiences of the newest imports."""
    with _connection(settings) as connection:
        found = overview.disagreements(connection)
    return dg.AssetCheckResult(
        passed=not found,
        metadata={"audiences": ", ".join(str(one.audience_id) for one in found) or "none"},
    )


@asset_check(asset=audience_imports.key)
def no_dead_letters(settings: SettingsResource) -> dg.AssetCheckResult:
    """No message on audiences waits for people to look at it (`activity-platform queue dead`)."""
    with closing(queue.connect(settings.redis_url)) as client:
        dead = {one.queue: one.dead for one in queue.Queues(client).status(AUDIENCE_QUEUES)}
    return dg.AssetCheckResult(
        passed=not any(dead.values()), severity=dg.AssetCheckSeverity.WARN, metadata=dict(dead)
    )


audience_checks_job = dg.define_asset_job(
    "audience_checks_job",
    selection=dg.AssetSelection.checks(members_are_as_told, no_dead_letters),
    description="Looks whether rows and counts of audiences agree, and whether messages were given up.",
    tags=job_tags(JobClass.OBSERVATION),
)


def definitions() -> dg.Definitions:
    """Everything of this page."""
    return dg.Definitions(
        assets=[trigger_firings],
        asset_checks=[members_are_as_told, no_dead_letters],
        jobs=[
            sweep_audience_queues_job,
            end_silent_audience_runs_job,
            trigger_firings_job,
            audience_checks_job,
        ],
        schedules=[
            silent_audience_runs_schedule,
            trigger_firings_schedule,
            every("23 * * * *", audience_checks_job.name, "Checks audiences once an hour."),
        ],
    )


def _connection(settings: Settings) -> psycopg.Connection:
    return postgres.connect(settings.database_url, application_name="activity-platform upkeep")


def _silent(instance: dg.DagsterInstance, settings: Settings) -> list[str]:
    """Audience runs that started some time ago and whose worker gives no sign of life."""
    now = datetime.now(UTC)
    started = instance.get_run_records(
        dg.RunsFilter(
            tags={"job_class": JobClass.AUDIENCE},
            statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING],
        )
    )
    old = [
        record.dagster_run.run_id
        for record in started
        if record.start_time is not None and record.start_time < (now - overview.DEAD_AFTER).timestamp()
    ]
    if not old:
        return []
    with _connection(settings) as connection:
        return overview.silent_runs(connection, old, now=now)
