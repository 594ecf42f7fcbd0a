"""Erasure in Dagster: what was asked for is carried out, older training files included.

Run config is stored and shown in the UI, and so are run keys and tags: none of them may say who is to be
forgotten. So a run is given the number of a row in `erasure`, which `activity-platform erase` writes (with
`--background` it does nothing else) and which names the person in the database alone, until it is finished.
"""

from contextlib import closing
from datetime import date

import dagster as dg

from activity_platform import erasure_requests
from activity_platform.defs import pages
from activity_platform.defs.jobs import JobClass, is_under_way, job_tags
from activity_platform.defs.resources import SettingsResource
from activity_platform.erase import carry_out
from activity_platform.gateways import postgres

#: Years of training files are read and rewritten one after the other.
MAX_RUNTIME_SECONDS = 3 * 60 * 60
APPLICATION = "activity-platform erase"


class ErasureConfig(dg.Config):
    """Which request: the number of its row, and nothing about the person."""

    erasure_id: int


@dg.op(out=dg.Out(dg.Nothing))
def carry_out_erasure(
    context: dg.OpExecutionContext, config: ErasureConfig, settings: SettingsResource
) -> None:
    """Erases what there still is, and clears the name when nothing is left."""
    with closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection:
        request = erasure_requests.find_pending(connection, config.erasure_id)
    if request is None:
        context.log.info("erasure %s is done, or was never asked for", config.erasure_id)
        return
    outcome = carry_out(settings, request, tell=lambda day: _tell(context, day))
    context.add_output_metadata({**outcome.erasure.counts, "uploads_left": outcome.uploads_left})


@dg.job(tags=job_tags(JobClass.ERASURE, max_runtime_seconds=MAX_RUNTIME_SECONDS))
def erase_job() -> None:
    """Finishes one erasure that is pending."""
    carry_out_erasure()


@dg.schedule(
    job=erase_job,
    cron_schedule="*/5 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description=pages.starter("Carries on every five minutes what was asked to be erased.", "erase_schedule"),
)
def erase_schedule(
    context: dg.ScheduleEvaluationContext, settings: SettingsResource
) -> list[dg.RunRequest] | dg.SkipReason:
    if is_under_way(context.instance, erase_job.name):
        return dg.SkipReason("an erasure is under way")
    with closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection:
        pending = erasure_requests.pending(connection)
    if not pending:
        return dg.SkipReason("nobody is to be erased")
    return [dg.RunRequest(run_config=_run_config(request.id)) for request in pending]


def definitions() -> dg.Definitions:
    """The job and its schedule."""
    return dg.Definitions(jobs=[erase_job], schedules=[erase_schedule])


def _run_config(erasure_id: int) -> dg.RunConfig:
    return dg.RunConfig(ops={carry_out_erasure.name: ErasureConfig(erasure_id=erasure_id)})


def _tell(context: dg.OpExecutionContext, day: date) -> None:
    context.log.info("training files: %s", day)
