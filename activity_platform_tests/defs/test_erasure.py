"""`erase_job` finishes what is pending, and nothing that Dagster stores says who it was."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
import psycopg
import pytest

from activity_platform import erasure_requests
from activity_platform.definitions import build_defs
from activity_platform.erasure_requests import Kind
from activity_platform.settings import Settings

GONE = "gone-user"


@pytest.fixture
def settings(environment: dict[str, str]) -> Settings:
    return Settings.load(environment | {"DOMAINS": "activity", "S3_BUCKET": ""})


@pytest.fixture
def definitions(settings: Settings) -> dg.Definitions:
    return build_defs(settings)


def _asked(
    definitions: dg.Definitions, settings: Settings, instance: dg.DagsterInstance
) -> Sequence[dg.RunRequest]:
    context = dg.build_schedule_context(instance=instance, resources={"settings": settings})
    return definitions.resolve_schedule_def("erase_schedule").evaluate_tick(context).run_requests or ()


def test_a_pending_request_is_carried_out_by_its_number(
    definitions: dg.Definitions, settings: Settings, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
        " VALUES (%s, 'save', 'event', 'e')",
        [GONE],
    )
    request = erasure_requests.request(connection, Kind.USER, subject=GONE)
    job = definitions.resolve_job_def("erase_job")
    with dg.instance_for_test() as instance:
        (asked,) = _asked(definitions, settings, instance)
        assert asked.run_config["ops"] == {"carry_out_erasure": {"config": {"erasure_id": request.id}}}
        for _ in range(2):  # the second one finds it done
            ended = job.execute_in_process(instance=instance, run_config=asked.run_config)
            assert ended.success
        assert not _asked(definitions, settings, instance)
        said = [str(entry) for entry in instance.all_logs(ended.run_id)] + [str(instance.get_runs())]
    assert not any(GONE in text for text in said)
    done = erasure_requests.read(connection, request.id)
    assert (done.status, dict(done.counts)) == ("done", {"events": 1})


def test_the_schedule_waits_for_the_run_under_way(
    definitions: dg.Definitions, settings: Settings, connection: psycopg.Connection
) -> None:
    erasure_requests.request(connection, Kind.USER, subject=GONE)
    with dg.instance_for_test() as instance:
        instance.create_run_for_job(
            definitions.resolve_job_def("erase_job"),
            run_config={"ops": {"carry_out_erasure": {"config": {"erasure_id": 1}}}},
            status=dg.DagsterRunStatus.STARTED,
        )
        assert not _asked(definitions, settings, instance)
