"""Jobs of activity, run in process on the test's database: what they do, show and check."""

from __future__ import annotations

from typing import Any

import dagster as dg
import psycopg
import pytest

from activity_platform.definitions import build_defs
from activity_platform.settings import Settings

EVENT = (
    "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
    " SELECT 'ann', %s, 'event', 'e1', clock_timestamp() - %s::interval"
)


@pytest.fixture
def definitions(environment: dict[str, str]) -> dg.Definitions:
    return build_defs(Settings.load(environment | {"ROLLUP_LAG_SECONDS": "0"}))


def _run(definitions: dg.Definitions, job: str) -> dg.ExecuteInProcessResult:
    with dg.instance_for_test() as instance:
        return definitions.resolve_job_def(job).execute_in_process(instance=instance)


def _metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    (materialization,) = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in materialization.metadata.items()}


def _checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


def test_the_fold_shows_its_window_and_its_checks_pass(
    definitions: dg.Definitions, connection: psycopg.Connection
) -> None:
    connection.execute(EVENT, ["save", "5 seconds"])
    connection.execute(EVENT, ["view", "4 seconds"])

    result = _run(definitions, "interaction_edges_job")

    shown = _metadata(result, "interaction_edges")
    assert (shown["events_folded"], shown["edges_touched"], shown["rows_waiting"]) == (1, 1, 0)
    assert (shown["held_by"], shown["window_start"]) == ("lag", "the first event")
    assert _checks(result) == {
        "edges_keep_up": True,
        "edges_hold_every_event": True,
        "no_event_came_late": True,
    }


def test_an_event_stamped_behind_the_watermark_turns_its_check_red(
    definitions: dg.Definitions, connection: psycopg.Connection
) -> None:
    connection.execute(EVENT, ["save", "5 seconds"])
    _run(definitions, "interaction_edges_job")
    connection.execute(EVENT, ["save", "4 seconds"])

    result = _run(definitions, "interaction_edges_job")

    assert _metadata(result, "interaction_edges")["late_events"] == 1
    assert not _checks(result)["no_event_came_late"]


def test_an_edge_that_nobody_accounts_for_turns_its_check_red(
    definitions: dg.Definitions, connection: psycopg.Connection
) -> None:
    connection.execute(EVENT, ["save", "5 seconds"])
    _run(definitions, "interaction_edges_job")
    connection.execute("UPDATE interaction_edges SET event_count = event_count - 1")

    assert not _checks(_run(definitions, "interaction_edges_job"))["edges_hold_every_event"]


def test_a_sample_of_edges_is_compared_with_their_events(
    definitions: dg.Definitions, connection: psycopg.Connection
) -> None:
    connection.execute(EVENT, ["save", "5 seconds"])
    _run(definitions, "interaction_edges_job")
    assert _checks(_run(definitions, "edges_audit_job")) == {"edges_equal_their_events": True}

    connection.execute("UPDATE interaction_edges SET weight = 2")
    (check,) = _run(definitions, "edges_audit_job").get_asset_check_evaluations()
    assert not check.passed
    assert (check.metadata["differences"].value, check.metadata["kinds"].value) == (1, "weight")
    assert "ann" not in str(check.metadata)


def test_maintenance_shows_what_it_made_and_its_check_passes(definitions: dg.Definitions) -> None:
    result = _run(definitions, "activity_event_partitions_job")
    assert _metadata(result, "activity_event_partitions")["created"] == 4
    assert _checks(result) == {"months_are_in_place": True}


def test_the_log_is_observed(definitions: dg.Definitions) -> None:
    result = _run(definitions, "observe_activity_events_job")
    (observation,) = result.asset_observations_for_node("observe_activity_events")
    assert observation.metadata["partitions"].value == 1


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_schedule_skips_while_a_run_is_unfinished(
    definitions: dg.Definitions, status: dg.DagsterRunStatus
) -> None:
    schedule = definitions.resolve_schedule_def("interaction_edges_schedule")
    with dg.instance_for_test() as instance:
        context = dg.build_schedule_context(instance=instance)
        asked = schedule.evaluate_tick(context).run_requests
        assert asked is not None
        assert len(asked) == 1
        instance.create_run_for_job(definitions.resolve_job_def("interaction_edges_job"), status=status)
        assert not schedule.evaluate_tick(context).run_requests
