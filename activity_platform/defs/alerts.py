"""What is told of runs that failed for good: a line of JSON on standard error, and a POST to a hook.

A run on an audience's message is not told of while the message is still in its queue: it will be tried again.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import dagster as dg
import httpx
from dagster_shared.error import SerializableErrorInfo

from activity_platform import USER_AGENT, failures
from activity_platform.defs import pages
from activity_platform.defs.resources import SettingsResource
from activity_platform.gateways import queue
from activity_platform.settings import Settings

log = logging.getLogger(__name__)

SECONDS = 15
#: Dagster hands on five runs a tick, and a tick has a minute.
POST_SECONDS = 5.0
#: Tags that name the work and nobody.
TOLD_TAGS = ("job_class", "queue", "entry_id", "audience_id", "line_oa_id")


def tell(
    run: dg.DagsterRun,
    errors: Iterator[SerializableErrorInfo],
    *,
    webhook_url: str,
    write: Callable[[str], object] | None = None,
) -> None:
    """Writes the line, then posts it. A hook that fails is logged, and nothing else: a tick that raises is
    not repeated either."""
    alert = describe(run, errors)
    (write or sys.stderr.write)(json.dumps(alert, ensure_ascii=False) + "\n")
    if webhook_url:
        try:
            headers = {"User-Agent": USER_AGENT}
            answer = httpx.post(webhook_url, json=alert, headers=headers, timeout=POST_SECONDS)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("ALERT_WEBHOOK_URL did not take the alert of run %s (%s)", run.run_id, _kind(error))


def describe(run: dg.DagsterRun, errors: Iterator[SerializableErrorInfo]) -> dict[str, Any]:
    """The alert. An error that is not meant for people is named by its class alone: it may quote a row."""
    return {
        "event": "run_canceled" if run.status is dg.DagsterRunStatus.CANCELED else "run_failed",
        "job": run.job_name,
        "run_id": run.run_id,
        "errors": list(dict.fromkeys(filter(None, map(_line, errors)))),
        "tags": {name: run.tags[name] for name in TOLD_TAGS if name in run.tags},
    }


def is_final(run: dg.DagsterRun, settings: Settings) -> bool:
    """Whether nobody will try again: neither Dagster nor the queue that the run's message is in."""
    if run.tags.get("dagster/will_retry") == "true":
        return False
    if "queue" not in run.tags or "entry_id" not in run.tags:
        return True
    try:
        with closing(queue.connect(settings.redis_url)) as client:
            return queue.Queues(client).get(run.tags["queue"], run.tags["entry_id"]) is None
    except failures.TransientFailure:
        return True  # better told once too often


@dg.run_failure_sensor(
    minimum_interval_seconds=SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=pages.starter(
        "Tells of runs that failed for good, on standard error and to ALERT_WEBHOOK_URL.", "failed_run_sensor"
    ),
)
def failed_run_sensor(context: dg.RunFailureSensorContext, settings: SettingsResource) -> None:
    run = _as_it_is_now(context)
    if is_final(run, settings):
        tell(run, _errors(context), webhook_url=settings.alert_webhook_url)


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.CANCELED,
    minimum_interval_seconds=SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=pages.starter(
        "Tells of runs that somebody cancelled, whom the failure sensor doesn't see.", "canceled_run_sensor"
    ),
)
def canceled_run_sensor(context: dg.RunStatusSensorContext, settings: SettingsResource) -> None:
    run = _as_it_is_now(context)
    if is_final(run, settings):
        tell(run, iter(()), webhook_url=settings.alert_webhook_url)


def definitions() -> dg.Definitions:
    """Both sensors."""
    return dg.Definitions(sensors=[failed_run_sensor, canceled_run_sensor])


def _as_it_is_now(context: dg.RunStatusSensorContext) -> dg.DagsterRun:
    # Dagster notes that it will retry a run only after it has reported the failure.
    return context.instance.get_run_by_id(context.dagster_run.run_id) or context.dagster_run


def _errors(context: dg.RunFailureSensorContext) -> Iterator[SerializableErrorInfo]:
    """Of the steps, and of the run itself: one that got no settings, since the database is another
    release's, has no step that failed."""
    for event in context.get_step_failure_events():
        yield from _with_causes(event.step_failure_data.error)
    whole = context.failure_event.job_failure_data
    yield from _with_causes(whole.error if whole else None)


def _with_causes(error: SerializableErrorInfo | None) -> Iterator[SerializableErrorInfo]:
    while error is not None:
        yield error
        error = error.cause


def _line(error: SerializableErrorInfo) -> str | None:
    kind = error.cls_name or "error"
    if kind.startswith("Dagster"):  # the wrapping of what follows as its cause
        return None
    if kind not in {one.__name__ for one in _for_people(failures.PlatformError)} | {dg.Failure.__name__}:
        return kind
    _, _, text = error.message.strip().partition(": ")
    return " ".join(text.split()) or kind


def _for_people(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _for_people(narrower)


def _kind(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return str(error.response.status_code)
    return type(error).__name__
