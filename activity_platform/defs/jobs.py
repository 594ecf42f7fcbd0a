"""What the jobs of all domains share: their tags, and schedules that never start one twice."""

from enum import StrEnum

import dagster as dg

from activity_platform.defs import pages

SHORT_RUN_SECONDS = 15 * 60


class JobClass(StrEnum):
    """The tag that dagster.yaml limits by. Classes that have a limit of one run one at a time."""

    FOLD = "fold"
    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    OBSERVATION = "observation"
    HOUSEKEEPING = "housekeeping"
    AUDIENCE = "audience"
    ERASURE = "erasure"


#: Waiting runs start in this order, highest first: the short ones that others wait for before the long ones.
PRIORITY = {
    JobClass.FOLD: 30,
    JobClass.DRAIN: 30,
    JobClass.MAINTENANCE: 20,
    JobClass.OBSERVATION: 10,
    JobClass.HOUSEKEEPING: 0,
    JobClass.AUDIENCE: 0,
    JobClass.ERASURE: 0,
}


UNFINISHED = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def job_tags(job_class: JobClass, *, max_runtime_seconds: int = SHORT_RUN_SECONDS) -> dict[str, str]:
    """The tags of a job: its class, its priority and the time after which its run is ended."""
    return {
        "job_class": job_class.value,
        "dagster/priority": str(PRIORITY[job_class]),
        "dagster/max_runtime": str(max_runtime_seconds),
    }


def is_under_way(instance: dg.DagsterInstance, job_name: str) -> bool:
    """Whether a run of the job waits or works."""
    unfinished = dg.RunsFilter(job_name=job_name, statuses=UNFINISHED)
    return bool(instance.get_run_records(unfinished, limit=1))


def every(cron: str, job_name: str, description: str) -> dg.ScheduleDefinition:
    """A schedule of the job, in UTC, that skips a tick while a run of it is unfinished."""

    name = job_name.removesuffix("_job") + "_schedule"

    @dg.schedule(
        name=name,
        job_name=job_name,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=pages.starter(description, name),
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if is_under_way(context.instance, job_name):
            return dg.SkipReason(f"a run of {job_name} is unfinished")
        return dg.RunRequest()

    return schedule
