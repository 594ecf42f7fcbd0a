"""The training corpus as an asset: a partition a day, and checks that tell when it is behind."""

from __future__ import annotations

from typing import Any

import dagster as dg
import psycopg
import pytest

from activity_platform.activity.corpus_location import corpus_of
from activity_platform.definitions import build_defs
from activity_platform.failures import TransientFailure
from activity_platform.settings import Settings
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, set_watermark

JOB = "activity_training_corpus_job"
KEY = dg.AssetKey("activity_training_corpus")


@pytest.fixture
def settings(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    bucket_of_its_own(environment, monkeypatch)
    return Settings.load(environment)


@pytest.fixture
def definitions(settings: Settings) -> dg.Definitions:
    return build_defs(settings)


@pytest.fixture
def two_days(connection: psycopg.Connection) -> None:
    for day in ("2026-09-14", "2026-09-15"):
        add_event(connection, at=f"{day}T12:00Z", times=3)
    set_watermark(connection, "'2026-10-01Z'")


def _run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, partition: str | None = None
) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def(JOB).execute_in_process(instance=instance, partition_key=partition)


def _shown(result: dg.ExecuteInProcessResult) -> list[tuple[str | None, dict[str, Any]]]:
    return [
        (one.partition, {name: value.value for name, value in one.metadata.items()})
        for one in result.asset_materializations_for_node(KEY.to_user_string())
    ]


def _checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


@pytest.mark.usefixtures("two_days")
def test_a_scheduled_run_exports_all_days_and_shows_each_as_a_partition(
    definitions: dg.Definitions, settings: Settings
) -> None:
    with dg.instance_for_test() as instance:
        result = _run(definitions, instance)

        assert instance.get_materialized_partitions(KEY) == {"2026-09-14", "2026-09-15"}
        assert [(day, shown.get("rows")) for day, shown in _shown(result)] == [
            *[("2026-09-14", 3), ("2026-09-15", 3), (None, None)],
        ]
        counts = _shown(result)[-1][1]
        assert (counts["days_written"], counts["days_unchanged"], counts["rows_written"]) == (2, 0, 6)
        assert _checks(result) == {"corpus_equals_the_log": True, "corpus_has_no_gaps": True}
        again = _shown(_run(definitions, instance))
        assert [(day, shown["days_written"]) for day, shown in again] == [(None, 0)]
    assert len(corpus_of(settings).days()) == 2


@pytest.mark.usefixtures("two_days")
def test_a_run_of_a_partition_exports_that_day(definitions: dg.Definitions, settings: Settings) -> None:
    with dg.instance_for_test() as instance:
        result = _run(definitions, instance, "2026-09-15")
        assert instance.get_materialized_partitions(KEY) == {"2026-09-15"}
        assert not _checks(result)["corpus_equals_the_log"]  # the other day is missing
        with pytest.raises(TransientFailure, match="not wholly folded"):
            _run(definitions, instance, "2026-10-02")
    assert [str(day) for day in corpus_of(settings).days()] == ["2026-09-15"]


def test_there_is_no_corpus_without_a_bucket(environment: dict[str, str]) -> None:
    chosen = environment | {"DOMAINS": "activity", "S3_BUCKET": ""}
    graph = build_defs(Settings.load(chosen)).resolve_asset_graph()
    assert KEY not in graph.get_all_asset_keys()
