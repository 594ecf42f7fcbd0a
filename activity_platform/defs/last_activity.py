"""Last activity in Dagster: a sensor that sees whether messages wait, and the run that works them off."""

import time
from collections.abc import Callable
from contextlib import closing

import dagster as dg

from activity_platform.defs import pages
from activity_platform.defs.jobs import JobClass, is_under_way, job_tags
from activity_platform.defs.pages import asset_check
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues, connect
from activity_platform.last_activity.drain import DrainResult, drain

IDLE_SECONDS = 30  # a run costs some seconds to start: it stays for the next message
DRAIN_SECONDS = 30 * 60
RUN_SECONDS = DRAIN_SECONDS + 5 * 60
PROGRESS_SECONDS = 60

#: The daemon looks for ticks that are due every 5 s. One that began late in a look has to be due at the next.
SENSOR_SECONDS = 3


@dg.asset(group_name="last_activity", kinds={"postgres", "redis"})
def line_user_last_activity(
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult[None]:
    """When each LINE user was last active, in what way, and how long they had been quiet before."""
    with closing(connect(settings.redis_url)) as client:
        queues = Queues(client)
        result = drain(
            settings.database_url,
            queues,
            idle_seconds=IDLE_SECONDS,
            max_seconds=DRAIN_SECONDS,
            on_progress=_once_a_minute(context.log),
        )
        (status,) = queues.status([LAST_ACTIVITY])
    return dg.MaterializeResult(
        metadata=result.numbers() | {"waiting": status.depth, "dead_letters": status.dead}
    )


@asset_check(asset=line_user_last_activity)
def redis_never_evicts(settings: SettingsResource) -> dg.AssetCheckResult:
    """Under any other maxmemory-policy than noeviction, a full Redis drops messages unseen."""
    with closing(connect(settings.redis_url)) as client:
        policy = Queues(client).maxmemory_policy()
    return dg.AssetCheckResult(passed=policy == "noeviction", metadata={"maxmemory_policy": policy})


line_user_last_activity_job = dg.define_asset_job(
    "line_user_last_activity_job",
    selection=dg.AssetSelection.assets(line_user_last_activity),
    description="Works the queue of last activities off, and goes on while traffic flows.",
    tags=job_tags(JobClass.DRAIN, max_runtime_seconds=RUN_SECONDS),
)


@dg.sensor(
    job=line_user_last_activity_job,
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=pages.starter(
        "Asks for a drain when messages wait and no drain is under way. It takes nothing itself.",
        "line_user_last_activity_sensor",
    ),
)
def line_user_last_activity_sensor(
    context: dg.SensorEvaluationContext, settings: SettingsResource
) -> dg.RunRequest | dg.SkipReason:
    if is_under_way(context.instance, line_user_last_activity_job.name):
        return dg.SkipReason("a drain is under way")
    with closing(connect(settings.redis_url)) as client:
        waiting = Queues(client).depth(LAST_ACTIVITY)
    return dg.RunRequest() if waiting else dg.SkipReason("no message waits")


def _once_a_minute(log: dg.DagsterLogManager) -> Callable[[DrainResult], None]:
    told = time.monotonic()

    def tell(so_far: DrainResult) -> None:
        nonlocal told
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            log.info("%d messages so far, %.0f a second", so_far.read, so_far.messages_per_second)

    return tell


def definitions() -> dg.Definitions:
    """The asset, its check, the job and the sensor of last activity."""
    return dg.Definitions(
        assets=[line_user_last_activity],
        asset_checks=[redis_never_evicts],
        jobs=[line_user_last_activity_job],
        sensors=[line_user_last_activity_sensor],
    )
