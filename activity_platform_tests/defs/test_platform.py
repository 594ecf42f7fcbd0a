"""Group `platform` in Dagster: health with its checks, dead letters and their way back, housekeeping."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import dagster as dg
import psycopg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from activity_platform import health as numbers
from activity_platform.definitions import build_defs
from activity_platform.gateways import dagster_database, queue
from activity_platform.gateways.queue import CREATE_AUDIENCE, Burial, Queues
from activity_platform.local.services import Stack
from activity_platform.settings import Settings

SOMEBODY = "U0123456789abcdef0123456789abcdef"


@pytest.fixture
def settings(
    environment: dict[str, str],
    stack: Stack,
    dagster_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    for name, value in stack.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return Settings.load(environment | {"DAGSTER_POSTGRES_URL": dagster_postgres_url})


@pytest.fixture
def queues(settings: Settings) -> Iterator[Queues]:
    with closing(queue.connect(settings.redis_url)) as client:
        yield Queues(client)


def run(
    settings: Settings,
    instance: dg.DagsterInstance,
    job: str,
    *,
    config: dict[str, object] | None = None,
    fails: bool = False,
) -> dg.ExecuteInProcessResult:
    definition = build_defs(settings).resolve_job_def(job)
    return definition.execute_in_process(instance=instance, run_config=config, raise_on_error=not fails)


def checks(ended: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {one.check_name: one for one in ended.get_asset_check_evaluations()}


def metadata(ended: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    (event,) = ended.asset_materializations_for_node(asset)
    return {name: value.value for name, value in event.metadata.items()}


def bury(queues: Queues, payload: str, error: str, attempts: int = 6) -> str:
    queues.publish(CREATE_AUDIENCE, payload, message_id=f"m-{SOMEBODY}")
    (entry,) = queues.peek(CREATE_AUDIENCE).entries
    queues.bury([Burial(entry, "line_unavailable", error, attempts)], now=datetime.now(UTC))
    return entry.entry_id


def test_health_is_a_check_for_each_limit_and_numbers_that_plot(
    settings: Settings, instance: dg.DagsterInstance, connection: psycopg.Connection
) -> None:
    connection.execute("UPDATE activity_rollup_state SET watermark = clock_timestamp() - interval '1 hour'")
    for daemon in dagster_database.DAEMONS:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "one", []))

    ended = run(settings, instance, "platform_health_job")

    found = checks(ended)
    assert found.keys() == {limit.name for limit in numbers.LIMITS}
    bad = {name: one for name, one in found.items() if not one.passed}
    assert bad.keys() == {"fold_lag", "months_ahead"}  # the test's database has no month
    assert bad["fold_lag"].severity is dg.AssetCheckSeverity.ERROR
    assert "Cure: see the newest run of interaction_edges_job" in str(bad["fold_lag"].description)
    told = metadata(ended, "platform_health")
    assert isinstance(told["fold_lag_seconds"], float)
    assert 3600 < told["fold_lag_seconds"] < 3700
    assert told["queue_depth create_audience"] == 0


def test_growth_is_told_once_a_look_of_yesterday_is_there(
    settings: Settings, instance: dg.DagsterInstance, dagster_postgres_url: str
) -> None:
    assert checks(run(settings, instance, "platform_health_job"))["disk_growth"].passed
    with psycopg.connect(dagster_postgres_url) as connection:
        connection.execute(
            "UPDATE event_logs SET timestamp = timestamp - interval '25 hours',"
            " event = regexp_replace(event, '\"value\": [0-9]{7,}', '\"value\": 1000')"
            " WHERE dagster_event_type = 'ASSET_MATERIALIZATION'"
        )
    ended = run(settings, instance, "platform_health_job")
    told = metadata(ended, "platform_health")
    assert told["growth_bytes"] == int(str(told["bytes"])) - 1000
    assert checks(ended)["disk_growth"].passed


def test_dead_letters_are_shown_without_what_names_people(
    settings: Settings, instance: dg.DagsterInstance, queues: Queues
) -> None:
    entry_id = bury(queues, f'{{"lineUserId": "{SOMEBODY}"}}', "LINE answered 500 | twice")
    ended = run(settings, instance, "platform_health_job")
    told = metadata(ended, "dead_letters")
    assert told["create_audience"] == 1
    lines = str(told["letters"]).splitlines()
    assert lines[0] == "| queue | dead id | entry id | attempts | reason | error | failed at |"
    assert f"| {entry_id} | 6 | line_unavailable | LINE answered 500 \\| twice |" in lines[2]
    assert SOMEBODY not in str(told)
    check = checks(ended)["dead_letters"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == (
        "create_audience 1. Cure: see the asset dead_letters for the reasons; cure them, then launch"
        " replay_dead_letters."
    )


def test_a_replay_brings_a_message_back_with_no_attempt_counted(
    settings: Settings, instance: dg.DagsterInstance, queues: Queues, connection: psycopg.Connection
) -> None:
    first, second = bury(queues, "1", "away"), bury(queues, "2", "away")
    connection.execute(
        "INSERT INTO message_attempt (queue, message_id, attempts) VALUES (%s, %s, 6)",
        [CREATE_AUDIENCE, f"m-{SOMEBODY}"],
    )
    config = {"queue": CREATE_AUDIENCE, "ids": [first]}
    run(settings, instance, "replay_dead_letters", config={"ops": {"put_back": {"config": config}}})
    (back,) = queues.peek(CREATE_AUDIENCE).entries
    assert (back.payload, back.original_id) == (b"1", first)
    assert [letter.entry_id for letter in queues.dead(CREATE_AUDIENCE)] == [second]
    assert connection.execute("SELECT count(*) FROM message_attempt").fetchone() == (0,)

    everything = {"queue": CREATE_AUDIENCE, "everything": True}
    run(settings, instance, "replay_dead_letters", config={"ops": {"put_back": {"config": everything}}})
    assert queues.depth(CREATE_AUDIENCE) == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"queue": CREATE_AUDIENCE}, "name ids, or set everything"),
        ({"queue": CREATE_AUDIENCE, "ids": ["1-0"], "everything": True}, "name ids, or set everything"),
        ({"queue": CREATE_AUDIENCE, "ids": ["1-0"]}, "not among the dead letters of create_audience: 1-0"),
        ({"queue": "nobody", "everything": True}, "there is no queue 'nobody'"),
    ],
)
def test_a_senseless_replay_says_why_and_moves_nothing(
    settings: Settings,
    instance: dg.DagsterInstance,
    queues: Queues,
    config: dict[str, object],
    said: str,
) -> None:
    bury(queues, "1", "away")
    run_config: dict[str, object] = {"ops": {"put_back": {"config": config}}}
    ended = run(settings, instance, "replay_dead_letters", config=run_config, fails=True)
    assert not ended.success
    assert said in str([event.event_specific_data for event in ended.all_events])
    assert queues.depth(CREATE_AUDIENCE) == 0


def test_housekeeping_forgets_what_is_old_and_tells_how_much(
    settings: Settings,
    instance: dg.DagsterInstance,
    connection: psycopg.Connection,
    dagster_postgres_url: str,
) -> None:
    connection.execute(
        "INSERT INTO processed_message VALUES ('create_audience', 'old', now() - interval '31 days')"
    )
    connection.execute(
        "INSERT INTO processed_message VALUES ('create_audience', 'new', now() - interval '29 days')"
    )
    connection.execute("INSERT INTO idempotency_key VALUES ('u', 'old', 1, now() - interval '25 hours')")
    first = run(settings, instance, "housekeeping_job")
    assert metadata(first, "message_history")["processed_messages"] == 1
    assert metadata(first, "activity_history")["idempotency_keys"] == 1
    assert metadata(first, "dagster_history")["runs"] == 0
    with psycopg.connect(dagster_postgres_url) as database:
        database.execute("UPDATE runs SET update_timestamp = update_timestamp - interval '15 days'")
    second = run(settings, instance, "housekeeping_job")
    # The first run was the last to materialize them until now: it goes with the next.
    assert metadata(second, "dagster_history")["runs"] == 0
    third = run(settings, instance, "housekeeping_job")
    assert metadata(third, "dagster_history")["runs"] == 1
    assert instance.get_run_by_id(first.run_id) is None


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        ("activity", {"platform_health", "dagster_history", "activity_history"}),
        ("last_activity", {"platform_health", "dagster_history", "dead_letters"}),
        ("audience", {"platform_health", "dagster_history", "dead_letters", "message_history"}),
    ],
)
def test_domains_choose_what_is_kept_in_order(
    environment: dict[str, str], domains: str, expected: set[str]
) -> None:
    graph = build_defs(Settings.load(environment | {"DOMAINS": domains})).resolve_asset_graph()
    of_platform = {
        key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).group_name == "platform"
    }
    assert of_platform == expected
