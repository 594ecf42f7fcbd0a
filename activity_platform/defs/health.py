"""The platform's health in Dagster: numbers and checks, what was given up, and the job that puts it back."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice

import dagster as dg
from pydantic import Field

from activity_platform import health
from activity_platform.audience.attempts import forget_attempts
from activity_platform.defs import pages
from activity_platform.defs.jobs import JobClass, every, job_tags
from activity_platform.defs.resources import SettingsResource
from activity_platform.failures import UsageError
from activity_platform.gateways import postgres, queue

GROUP = "platform"
LETTERS_SHOWN = 100  # of each queue, the oldest
DAY = timedelta(days=1)

OF_DEAD_LETTERS = [limit for limit in health.LIMITS if limit.name == "dead_letters"]
OF_HEALTH = [limit for limit in health.LIMITS if limit.name != "dead_letters"]


def _specs(asset: str, limits: list[health.Limit]) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(
            limit.name,
            asset=asset,
            description=pages.check(f"{limit.about} If not: {limit.cure}.", limit.name),
        )
        for limit in limits
    ]


@dg.asset(
    group_name=GROUP,
    kinds={"postgres", "redis"},
    check_specs=_specs("platform_health", OF_HEALTH),
)
def platform_health(  # beside checks, Dagster knows the result's type only without its parameter
    context: dg.AssetExecutionContext, settings: SettingsResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """What an operator looks at first: ages, lags, sizes, each with the limit it should keep."""
    readings = [*health.collect(settings)]
    size = sum(reading.value for reading in readings if reading.measure == "database_bytes")
    before = _size_a_day_ago(context)
    if before is not None:
        readings.append(health.Reading(health.GROWTH, size - before))
    return dg.MaterializeResult(
        metadata={"bytes": int(size), **{_title(reading): _shown(reading) for reading in readings}},
        check_results=list(_results(readings, OF_HEALTH)),
    )


@dg.asset(group_name=GROUP, kinds={"redis"}, check_specs=_specs("dead_letters", OF_DEAD_LETTERS))
def dead_letters(settings: SettingsResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Messages that were given up: why, and since when. Their payloads stay out, since they name people."""
    with closing(queue.connect(settings.redis_url)) as client:
        queues = queue.Queues(client)
        letters = [letter for name in queue.QUEUES for letter in islice(queues.dead(name), LETTERS_SHOWN)]
    readings = [one for one in health.collect(settings) if one.measure in ("queue_dead", "up")]
    return dg.MaterializeResult(
        metadata={
            **{one.of: int(one.value) for one in readings if one.measure == "queue_dead"},
            "letters": dg.MetadataValue.md(_table(letters)),
        },
        check_results=list(_results(readings, OF_DEAD_LETTERS)),
    )


class Replay(dg.Config):
    """Which dead letters go back: those whose dead id or entry id is named, or all of the queue."""

    queue: str
    ids: list[str] = Field(default_factory=list)
    everything: bool = False


@dg.op(out=dg.Out(dg.Nothing))
def put_back(context: dg.OpExecutionContext, config: Replay, settings: SettingsResource) -> None:
    """Puts dead letters back on their queue, with the attempts counted so far forgotten."""
    if bool(config.ids) == config.everything:
        raise UsageError("name ids, or set everything: one of the two")
    with (
        closing(queue.connect(settings.redis_url)) as client,
        closing(
            postgres.connect(settings.database_url, application_name="activity-platform replay")
        ) as connection,
    ):
        replay = queue.Queues(client).replay(
            config.queue,
            config.ids,
            forget=lambda message_ids: forget_attempts(connection, config.queue, message_ids),
        )
    context.log.info("%d messages are back on %s", len(replay.message_ids), config.queue)
    if replay.missing:
        raise UsageError(f"not among the dead letters of {config.queue}: {', '.join(replay.missing)}")


@dg.job(tags=job_tags(JobClass.HOUSEKEEPING))
def replay_dead_letters() -> None:
    """Puts messages that were given up back on their queue, once the reason is cured."""
    put_back()


def definitions(domains: tuple[str, ...]) -> dg.Definitions:
    """The assets, checks and jobs; those of dead letters where a domain has queues."""
    has_queues = not {"audience", "last_activity"}.isdisjoint(domains)
    assets = [platform_health, *([dead_letters] if has_queues else [])]
    job = dg.define_asset_job(
        "platform_health_job",
        selection=dg.AssetSelection.assets(*assets),
        description="Looks at everything the platform stands on.",
        tags=job_tags(JobClass.OBSERVATION),
    )
    return dg.Definitions(
        assets=assets,
        jobs=[job, *([replay_dead_letters] if has_queues else [])],
        schedules=[every("*/5 * * * *", job.name, "Looks at the platform's health every five minutes.")],
    )


def _results(readings: list[health.Reading], limits: list[health.Limit]) -> Iterator[dg.AssetCheckResult]:
    for verdict in health.judge(readings, limits):
        yield dg.AssetCheckResult(
            check_name=verdict.limit.name,
            passed=verdict.passed,
            severity=dg.AssetCheckSeverity.ERROR if verdict.limit.severe else dg.AssetCheckSeverity.WARN,
            description=verdict.text if verdict.passed else f"{verdict.text}. Cure: {verdict.limit.cure}.",
            metadata={"value": _shown(verdict.worst)} if verdict.worst else {},
        )


def _size_a_day_ago(context: dg.AssetExecutionContext) -> float | None:
    """The databases' size as the newest look of a day ago or before told it."""
    found = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(
            asset_key=platform_health.key, before_timestamp=(datetime.now(UTC) - DAY).timestamp()
        ),
        limit=1,
    )
    for record in found.records:
        told = record.asset_materialization
        size = told.metadata.get("bytes") if told else None
        if isinstance(size, dg.IntMetadataValue):
            return size.value
    return None


def _title(reading: health.Reading) -> str:
    return f"{reading.measure} {reading.of}".strip()


def _shown(reading: health.Reading) -> float | int:
    """Whole numbers as such; what never was as a very long time, since JSON knows no infinity."""
    value = min(reading.value, 1e9)
    return int(value) if value == int(value) else value


def _table(letters: list[queue.DeadLetter]) -> str:
    if not letters:
        return "Nothing is buried."
    columns = ("queue", "dead id", "entry id", "attempts", "reason", "error", "failed at")
    rows = [
        (one.queue, one.dead_id, one.entry_id, one.attempts, one.reason, one.error, one.failed_at)
        for one in letters
    ]
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(str(cell)) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:200]
