"""Audiences in Dagster: a sensor that asks for one run a message, and the jobs of the four commands.

Run config, keys and tags carry queue, entry id and numbers: nothing that a producer wrote.
"""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeAlias

import dagster as dg

from activity_platform.audience import endings, process
from activity_platform.audience.integration import open_services
from activity_platform.audience.lock import AudienceBusy
from activity_platform.audience.order import Candidate, due, read_heads
from activity_platform.audience.services import ImportRef, Services
from activity_platform.defs import audience_upkeep, pages
from activity_platform.defs.audience_assets import audience_imports, audience_members, show
from activity_platform.defs.audience_upkeep import sweep_audience_queues_job
from activity_platform.defs.jobs import UNFINISHED, JobClass, is_under_way, job_tags
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import postgres, queue

RUN_SECONDS = 3 * 60 * 60
SENSOR_SECONDS = 3  # due at every look of the daemon, which looks each 5 s
REQUESTS_A_TICK = 50  # each costs the daemon some 20 ms
RUNS_OF_AN_OA = 10  # two work, the others wait: a long queue of one OA must not fill the list of runs

#: The parameter `audience_services: AudienceServices` of an op. One for all steps of a run in one process.
AudienceServices: TypeAlias = dg.ResourceParam[Services]
Ref: TypeAlias = dict[str, Any]


@dg.resource(
    required_resource_keys={"settings", "s3"}, description="What the commands on audiences work with."
)
def services_of_a_run(context: dg.InitResourceContext) -> Iterator[Services]:
    log = context.log or dg.get_dagster_logger()
    with open_services(context.resources.settings, log=log, s3=context.resources.s3) as services:
        yield services


class Message(dg.Config):
    """Which entry of which queue a run works on."""

    queue: str
    entry_id: str


@dg.op(out=dg.Out(Ref, is_required=False))
def load(
    context: dg.OpExecutionContext, config: Message, audience_services: AudienceServices
) -> Iterator[dg.Output[Ref]]:
    """Counts the attempt and finds audience and OA. Later steps are skipped if the message needs none."""
    try:
        begun = process.load(audience_services, config.queue, config.entry_id, run_id=context.run_id)
    except AudienceBusy as busy:
        context.log.warning("%s; the sensor will ask again", busy)
        return
    if isinstance(begun, ImportRef):
        yield dg.Output(asdict(begun), metadata={"import_id": begun.import_id})
    else:
        show(context, audience_services, begun)


def _step_op(step: process.Step) -> dg.OpDefinition:
    @dg.op(name=step.__name__, description=step.__doc__)
    def step_op(context: dg.OpExecutionContext, audience_services: AudienceServices, ref: Ref) -> Ref:
        with _failures_recorded(context, audience_services, ref):
            step(audience_services, ImportRef(**ref))
        return ref

    return step_op


read_file = _step_op(process.read_file)
fetch_profiles = _step_op(process.fetch_profiles)
change_membership = _step_op(process.change_membership)


@dg.op(out=dg.Out(dg.Nothing))
def publish(context: dg.OpExecutionContext, audience_services: AudienceServices, ref: Ref) -> None:
    """Takes the message off its queue, sends what it fired, and shows how the command ended."""
    with _failures_recorded(context, audience_services, ref):
        result = process.publish(audience_services, ImportRef(**ref))
    show(context, audience_services, result)


def _job(queue_name: str, about: str) -> dg.JobDefinition:
    @dg.job(
        name=f"{queue_name}_job",
        description=about,
        tags=job_tags(JobClass.AUDIENCE, max_runtime_seconds=RUN_SECONDS),
    )
    def job() -> None:
        ref = load()
        if queue_name != queue.DELETE_AUDIENCE:
            ref = fetch_profiles(read_file(ref))
        publish(change_membership(ref))

    return job


JOBS = {
    name: _job(name, about)
    for name, about in {
        queue.CREATE_AUDIENCE: "Makes an audience of whom a file names.",
        queue.UPDATE_AUDIENCE: "Replaces an audience's members by those whom a file names.",
        queue.MOOKEPT_AUDIENCE: "Adds whom a file names to an audience, or removes them from it.",
        queue.DELETE_AUDIENCE: "Removes all members of an audience and marks it as deleted.",
    }.items()
}


def _ask_for_runs(
    context: dg.SensorEvaluationContext, settings: SettingsResource
) -> dg.SensorResult | dg.SkipReason:
    # Runs first: one that ends in between leaves its entry deleted, so that nothing is asked for twice.
    unfinished = context.instance.get_runs(
        dg.RunsFilter(tags={"job_class": JobClass.AUDIENCE}, statuses=list(UNFINISHED))
    )
    with (
        closing(queue.connect(settings.redis_url)) as client,
        postgres.connect(settings.database_url, application_name="activity-platform sensor") as connection,
    ):
        heads = read_heads(queue.Queues(client))
        asked = due(
            connection,
            heads.candidates,
            retry_seconds=settings.audience_retry_seconds,
            now=datetime.now(UTC),
        )
    requests = []
    for candidate in _startable(asked, [run.tags for run in unfinished]):
        runs = context.instance.get_run_records(dg.RunsFilter(tags=_of_entry(candidate)))
        if _rested(runs, settings.audience_retry_seconds):
            requests.append(_request(candidate, len(runs) + 1))
    if heads.undecodable and not is_under_way(context.instance, sweep_audience_queues_job.name):
        requests.append(dg.RunRequest(job_name=sweep_audience_queues_job.name))
    if requests:
        return dg.SensorResult(run_requests=requests)
    return dg.SkipReason(f"{len(heads.candidates)} audiences have a message; none can start now")


class _QuietSensor(dg.SensorDefinition):
    """Dagster 1.13 copies a sensor of several jobs when it gives these their resources, and warns then that
    a parameter is in beta which only it has set. Drop when `dagster.SensorDefinition.owners` left beta."""

    def with_attributes(self, **attributes: Any) -> dg.SensorDefinition:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return super().with_attributes(**attributes)


audience_queue_sensor = _QuietSensor(
    name="audience_queue_sensor",
    evaluation_fn=_ask_for_runs,
    jobs=[*JOBS.values(), sweep_audience_queues_job],
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=pages.starter(
        "Asks, for each audience, for a run of its oldest unfinished message over the four queues, once it is"
        " due. It takes nothing itself.",
        "audience_queue_sensor",
    ),
)


def _startable(candidates: list[Candidate], unfinished: list[Mapping[str, str]]) -> list[Candidate]:
    """Those of audiences without a run, in their order, as many as an OA and a tick may have."""
    busy = {tags.get("audience_id") for tags in unfinished}
    runs: dict[str, int] = {}
    for tags in unfinished:
        runs[tags["line_oa_id"]] = runs.get(tags["line_oa_id"], 0) + 1
    chosen = []
    for candidate in candidates:
        oa = str(candidate.message.line_oa_id)
        if str(candidate.message.audience_id) not in busy and runs.get(oa, 0) < RUNS_OF_AN_OA:
            runs[oa] = runs.get(oa, 0) + 1
            chosen.append(candidate)
    return chosen[:REQUESTS_A_TICK]


def _rested(runs: Sequence[dg.RunRecord], retry_seconds: Sequence[int]) -> bool:
    """Whether the message's last run, if there was one, ended long enough ago.

    A run that fails before it counts an attempt, as in a broken setup, must not be followed by the next at
    once, and for ever.
    """
    ended = max((run.end_time or 0 for run in runs), default=0)
    return ended + retry_seconds[0] <= time.time()


def _of_entry(candidate: Candidate) -> dict[str, str]:
    return {"queue": candidate.entry.queue, "entry_id": candidate.entry.entry_id}


def _request(candidate: Candidate, number: int) -> dg.RunRequest:
    message = candidate.message
    of_entry = _of_entry(candidate)
    return dg.RunRequest(
        # Dagster never starts a second run with a key that any run had, a failed one included.
        run_key=f"{of_entry['queue']}/{of_entry['entry_id']}/{number}",
        job_name=JOBS[of_entry["queue"]].name,
        run_config={"ops": {"load": {"config": of_entry}}},
        tags=of_entry
        | {
            "audience_id": str(message.audience_id),
            "line_oa_id": str(message.line_oa_id),
            "organization_id": str(message.organization_id),
        },
    )


@contextmanager
def _failures_recorded(context: dg.OpExecutionContext, services: Services, ref: Ref) -> Iterator[None]:
    """Within it, a failure of the command decides what becomes of its message, and then fails the run."""
    try:
        yield
    except Exception as error:
        show(context, services, endings.fail_step(services, ImportRef(**ref), error))


def definitions() -> dg.Definitions:
    """The jobs, sensor and assets of audiences, and what keeps them in order."""
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[audience_members, audience_imports],
            jobs=list(JOBS.values()),
            sensors=[audience_queue_sensor],
            resources={"audience_services": services_of_a_run},
        ),
        audience_upkeep.definitions(),
    )
