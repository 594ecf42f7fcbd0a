"""Who is told of runs that failed for good: one line, one POST; never of what will be tried again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from activity_platform.defs import alerts
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways import queue
from activity_platform.settings import Settings

SOMEBODY = "U0123456789abcdef0123456789abcdef"


class Hook(HTTPServer):
    """What ALERT_WEBHOOK_URL leads to. Answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.got: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?secret=s3cret"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@dg.op(out=dg.Out(dg.Nothing))
def fails_for_people() -> None:
    raise TransientFailure("LINE is away: try later")


@dg.op(out=dg.Out(dg.Nothing))
def fails_with_a_name() -> None:
    raise ValueError(f"no user {SOMEBODY}")


@dg.op(out=dg.Out(dg.Nothing))
def fails_on_purpose() -> None:
    raise dg.Failure("not_authorized: the token has lapsed", allow_retries=False)


@dg.resource
def not_there() -> None:
    raise PermanentFailure("the database is behind: migrate it")


@dg.op(out=dg.Out(dg.Nothing), required_resource_keys={"not_there"})
def never_begins() -> None:
    """Is not reached."""


@dg.job(resource_defs={"not_there": not_there})
def without_a_resource() -> None:
    never_begins()


@dg.job
def for_people() -> None:
    fails_for_people()


@dg.job
def with_a_name() -> None:
    fails_with_a_name()


@dg.job
def on_purpose() -> None:
    fails_on_purpose()


def run(job: dg.JobDefinition, instance: dg.DagsterInstance, **tags: str) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(instance=instance, raise_on_error=False, tags=tags)


def evaluate(ended: dg.ExecuteInProcessResult, instance: dg.DagsterInstance, settings: Settings) -> None:
    context = dg.build_run_status_sensor_context(
        sensor_name="failed_run_sensor",
        dagster_event=ended.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=ended.dagster_run,
        resources={"settings": settings},
    ).for_run_failure()
    alerts.failed_run_sensor(context)


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith('{"event"')]


@pytest.fixture
def told(settings: Settings, environment: dict[str, str], hook: Hook) -> Settings:
    return Settings.load(environment | {"ALERT_WEBHOOK_URL": hook.url})


def test_a_failed_run_is_one_line_and_one_post(
    instance: dg.DagsterInstance, told: Settings, hook: Hook, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(for_people, instance, job_class="fold", note="private")
    evaluate(ended, instance, told)
    alert = {
        "event": "run_failed",
        "job": "for_people",
        "run_id": ended.run_id,
        "errors": ["LINE is away: try later"],
        "tags": {"job_class": "fold"},
    }
    assert lines(capfd) == [alert]
    assert hook.got == [alert]


def test_only_errors_meant_for_people_are_quoted(
    instance: dg.DagsterInstance, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    for job in (with_a_name, on_purpose, without_a_resource):
        evaluate(run(job, instance), instance, settings)
    err = [line for line in capfd.readouterr().err.splitlines() if line.startswith('{"event"')]
    assert [json.loads(line)["errors"] for line in err] == [
        ["ValueError"],
        ["not_authorized: the token has lapsed"],
        ["the database is behind: migrate it"],
    ]
    assert SOMEBODY not in "".join(err)


@pytest.mark.parametrize("broken", ["status", "away"])
def test_a_hook_that_fails_is_logged_without_its_address(
    instance: dg.DagsterInstance,
    told: Settings,
    hook: Hook,
    broken: str,
    caplog: pytest.LogCaptureFixture,
    environment: dict[str, str],
) -> None:
    hook.status = 500
    if broken == "away":
        told = Settings.load(environment | {"ALERT_WEBHOOK_URL": "http://127.0.0.1:9/hook?secret=s3cret"})
    evaluate(run(for_people, instance), instance, told)
    (said,) = [record.getMessage() for record in caplog.records if record.name == alerts.__name__]
    assert "did not take the alert" in said
    assert ("500" in said) == (broken == "status")
    assert "s3cret" not in caplog.text


def test_a_message_that_is_still_in_its_queue_will_be_tried_again(
    instance: dg.DagsterInstance, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(queue.connect(settings.redis_url)) as client:
        queues = queue.Queues(client)
        entry_id = queues.publish("create_audience", "{}")
        ended = run(on_purpose, instance, queue="create_audience", entry_id=entry_id)
        evaluate(ended, instance, settings)
        assert lines(capfd) == []
        queues.finish("create_audience", [entry_id])
    evaluate(ended, instance, settings)
    assert [line["tags"] for line in lines(capfd)] == [{"queue": "create_audience", "entry_id": entry_id}]


def test_a_run_that_dagster_retries_is_not_told_of(
    instance: dg.DagsterInstance, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(for_people, instance)
    instance.add_run_tags(ended.run_id, {"dagster/will_retry": "true"})
    evaluate(ended, instance, settings)
    assert lines(capfd) == []


def test_a_cancelled_run_is_told_of(
    instance: dg.DagsterInstance, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    started = instance.create_run_for_job(for_people, status=dg.DagsterRunStatus.STARTED)
    event = instance.report_run_canceled(started)
    context = dg.build_run_status_sensor_context(
        sensor_name="canceled_run_sensor",
        dagster_event=event,
        dagster_instance=instance,
        dagster_run=instance.get_run_by_id(started.run_id) or started,
        resources={"settings": settings},
    )
    alerts.canceled_run_sensor(context)
    assert [line["event"] for line in lines(capfd)] == ["run_canceled"]
