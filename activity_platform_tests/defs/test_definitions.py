"""The definitions load in a fresh interpreter, and what they hold is what the snapshot says.

After a wanted change: `UPDATE_SNAPSHOT=1 .venv/bin/pytest activity_platform_tests/defs/test_definitions.py`,
and read the difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from activity_platform.definitions import build_defs
from activity_platform.failures import UsageError
from activity_platform.settings import Settings

SNAPSHOT = Path(__file__).with_name("definitions.json")


def _summary(definitions: dg.Definitions) -> dict[str, Any]:
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    return {
        "assets": {
            key.to_user_string(): {
                "group": graph.get(key).group_name,
                "deps": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
                "checks": sorted(check.name for check in graph.get(key).check_keys),
            }
            for key in sorted(graph.get_all_asset_keys())
        },
        "jobs": {
            job.name: dict(sorted(job.tags.items()))
            for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
            if not job.name.startswith("__")
        },
        "schedules": {
            schedule.name: {
                "job": schedule.job_name,
                "cron": schedule.cron_schedule,
                "status": schedule.default_status.value,
            }
            for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name)
        },
        "sensors": {
            sensor.name: {
                "jobs": sorted(target.job_name for target in sensor.targets),
                "seconds": sensor.minimum_interval_seconds,
                "status": sensor.default_status.value,
            }
            for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name)
        },
    }


def test_the_definitions_are_those_of_the_snapshot(settings: Settings) -> None:
    summary = _summary(build_defs(settings))
    if os.environ.get("UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(json.dumps(summary, indent=2) + "\n")
    assert summary == json.loads(SNAPSHOT.read_text())


def test_everything_that_starts_by_itself_is_described_and_running(settings: Settings) -> None:
    repository = build_defs(settings).get_repository_def()
    started: list[dg.ScheduleDefinition | dg.SensorDefinition] = [
        *repository.schedule_defs,
        *repository.sensor_defs,
    ]
    for one in started:
        assert one.description, one.name
        assert one.default_status.value == "RUNNING", one.name


def test_they_load_in_a_fresh_interpreter(environment: dict[str, str]) -> None:
    code = (
        "from activity_platform.definitions import defs\n"
        "print(len(defs().get_repository_def().get_all_jobs()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


def test_activity_alone_needs_no_redis_and_no_bucket(environment: dict[str, str]) -> None:
    chosen = {"DOMAINS": "activity", "DATABASE_URL": environment["DATABASE_URL"]}
    assert build_defs(Settings.load(chosen)).resolve_asset_graph().get_all_asset_keys()


@pytest.mark.parametrize("missing", ["DATABASE_URL", "REDIS_URL", "S3_BUCKET"])
def test_a_missing_variable_is_named(environment: dict[str, str], missing: str) -> None:
    with pytest.raises(UsageError, match=f"^{missing} is not set"):
        build_defs(Settings.load(environment | {missing: ""}))
