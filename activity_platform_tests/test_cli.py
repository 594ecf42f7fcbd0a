"""The command line as a person or a script meets it: results, single-line failures, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import jwt
import psycopg
import pytest

from activity_platform.local import registry
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event
from activity_platform_tests.command_line import run_command

AWAY = "postgresql://user:password@127.0.0.1:9/nowhere"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs `activity-platform` on the test's database, with variables unset (`without`) or set (`env`)."""

    def run(
        *arguments: str,
        without: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        typed: str = "",
    ) -> subprocess.CompletedProcess[str]:
        chosen = {**os.environ, **environment, **(env or {})}
        kept = {name: value for name, value in chosen.items() if name not in without}
        return run_command(arguments, kept, typed=typed)

    return run


@pytest.fixture
def bucket(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that holds no other test's corpus."""
    bucket_of_its_own(environment, monkeypatch)


def _rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_events_become_edges_from_the_command_line(run: Run, connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
        " VALUES ('ann', 'save', 'event', 'e1'), ('ann', 'tap', 'event', 'e2')"
    )
    (folded,) = _rows(run("rollup", env={"ROLLUP_LAG_SECONDS": "0"}))
    assert {"watermark", "events", "edges", "slices", "lag_seconds", "busy"} <= folded.keys()
    assert (folded["events"], folded["edges"], folded["busy"]) == (2, 2, False)

    found = _rows(run("edges", "ann"))
    assert [(edge["edge_type"], edge["target_id"], edge["weight"]) for edge in found] == [
        ("saved", "e1", 3.0),
        ("tapped", "e2", 0.5),
    ]
    assert len(_rows(run("edges", "ann", "--edge-type", "saved", "--limit", "1"))) == 1
    assert _rows(run("edges", "nobody")) == []


@pytest.mark.usefixtures("bucket")
def test_an_edge_that_was_changed_by_hand_is_told(run: Run, connection: psycopg.Connection) -> None:
    add_event(connection, "e1", user="ann", at="2026-01-10T12:00Z", times=2)
    run("rollup")
    assert _rows(run("export-corpus")) == [
        {"day": "2026-01-10", "rows": 2, "late": 0, "bytes": ANY, "written": True}
    ]
    sound = run("audit-edges", without=("S3_BUCKET",))
    assert (sound.returncode, sound.stdout) == (0, "")
    assert "1 edges compared with 2 events folded from the first event" in sound.stderr
    assert "S3_BUCKET is not set" in sound.stderr

    connection.execute("UPDATE interaction_edges SET weight = 7")
    done = run("audit-edges", "--days", "4000")
    assert done.returncode == 1
    (told,) = (json.loads(line) for line in done.stdout.splitlines())
    assert (told["kind"], told["actor_id"], told["target_id"]) == ("weight", "ann", "e1")
    assert (told["expected"], told["found"]) == ("6", "7")
    assert done.stderr.splitlines()[-1] == "differences: 1"


def test_migrate_provisions_the_hot_months_and_is_repeatable(run: Run) -> None:
    assert [_rows(run("migrate"))[0]["partitions_created"] for _ in range(2)] == [4, 0]


def test_partitions_plan_says_what_apply_then_does(run: Run) -> None:
    at = ("--now", "2026-01-31T23:30:00+07:00")
    wanted = {f"activity_events_y2026m0{month}" for month in (1, 2, 3, 4)}

    def created(command: str) -> set[str]:
        return {
            row["partition"] for row in _rows(run("partitions", command, *at)) if row["action"] == "create"
        }

    assert created("plan") == wanted
    assert created("apply") == wanted
    assert created("plan") == set()


def test_a_token_holds_what_was_asked_for(run: Run, settings: Settings) -> None:
    done = run("token", "ann", "--scope", "edges:read", "--ttl", "60")
    claims = jwt.decode(done.stdout.strip(), settings.jwt_secret, algorithms=["HS256"])
    assert (claims["sub"], claims["scope"]) == ("ann", "edges:read")


def test_messages_go_in_and_the_drain_counts_them(run: Run) -> None:
    user = '"lineUserId":"U1","lineOaId":1,"organizationId":1'
    payload = f'{{{user},"activityType":"follow","activityStatus":"active"}}'
    assert _rows(run("queue", "enqueue", "line_user_last_activity", payload))[0]["entry_id"]
    status = {row["queue"]: row for row in _rows(run("queue", "status"))}
    assert status["line_user_last_activity"]["depth"] == 1
    assert set(status["create_audience"]) == {"queue", "depth", "dead", "oldest_seconds"}

    (counts,) = _rows(run("last-activity", "drain"))
    assert (counts["read"], counts["updated"], counts["unknown"]) == (1, 0, 1)


def test_a_dead_letter_is_shown_and_replayed(run: Run, redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.xadd("line_user_last_activity", {"payload": b"{not json"})
    assert _rows(run("last-activity", "drain"))[0]["buried"] == 1
    (letter,) = _rows(run("queue", "dead", "line_user_last_activity"))
    assert letter["reason"] == "bad_payload"

    (replayed,) = _rows(run("queue", "replay", "line_user_last_activity", letter["entry_id"]))
    assert replayed["message_ids"] == [letter["message_id"]]
    assert _rows(run("queue", "dead", "line_user_last_activity")) == []


def test_an_imported_file_becomes_an_audience(
    run: Run, tmp_path: Path, connection: psycopg.Connection
) -> None:
    (account,) = _rows(run("oa", "add", "--organization", "1", "--id", "5", typed="a-token\n"))
    assert account["has_token"]
    assert "a-token" not in run("oa", "list").stdout
    file = tmp_path / "members.csv"
    file.write_text("Line UserID\n" + "".join(f"U{number:032x}\n" for number in range(3)) + "nobody\n")

    with ThreadPoolExecutor() as threads:
        imported = threads.submit(
            run, "audience", "import", str(file), "--audience", "7", "--create", "Mine", "--oa", "5"
        )
        while not (worked := _rows(run("audience", "process"))):
            assert not imported.done(), imported.result().stderr

    assert [(row["command"], row["status"]) for row in worked] == [("create", "done")]
    (shown,) = _rows(imported.result())
    assert (shown["stats"]["members"], shown["stats"]["invalid"]) == (3, 1)
    assert connection.execute("SELECT count(*) FROM line_user WHERE 7 = ANY (audience_ids)").fetchone() == (
        3,
    )


def test_a_message_is_one_line_of_results_however_many_attempts_it_took(
    run: Run, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO line_oa (id, organization_id, hash, channel_access_token) VALUES (5, 1, 'h', 't')"
    )
    connection.execute(
        "INSERT INTO audience (id, organization_id, line_oa_id, name) VALUES (7, 1, 5, 'Mine')"
    )
    message = '{"audienceId":7,"lineOaId":5,"organizationId":1,"filePath":"private/h/missing.csv"}'
    run("queue", "enqueue", "update_audience", message)

    done = run("audience", "process", env={"AUDIENCE_RETRY_SECONDS": "1"})

    (result,) = _rows(done)
    assert (result["status"], result["reason"], result["attempts"]) == ("failed", "file_not_found", 2)
    assert "attempt 1 failed (file_not_found), another one follows" in done.stderr


def test_a_wrong_trigger_rule_is_shown_and_fails_the_check(run: Run, connection: psycopg.Connection) -> None:
    assert _rows(run("triggers", "check")) == []
    connection.execute(
        "INSERT INTO trigger_rule (organization_id, line_oa_id, kind, audience_id, on_event, conditions)"
        """ VALUES (1, 1, 'audience_membership', 7, 'added', '{"age": 3}')"""
    )
    (rule,) = _rows(run("triggers", "list"))
    assert "age" in rule["problem"]
    assert run("triggers", "check").returncode == 1


def test_a_missing_variable_is_named(run: Run) -> None:
    assert "DATABASE_URL is not set" in _one_line(run("rollup", without=("DATABASE_URL",)), 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("edges",), "ACTOR"),
        (("edges", "ann", "--limit", "0"), "limit"),
        (("edges", "ann", "--limit", "x"), "--limit"),
        (("partitions", "apply", "--now", "2026-01-31"), "--now"),
        (("queue", "dead", "nonsense"), "no queue 'nonsense'"),
        (("queue", "enqueue", "create_audience", "{"), "JSON"),
        (("oa", "add", "--organization", "1"), "token"),
        (("audience", "import", "/nowhere.csv", "--audience", "7"), "/nowhere.csv"),
        (("audience", "import", __file__, "--audience", "7"), "no audience 7"),
        (("audience", "import", __file__, "--audience", "7", "--create", "Mine"), "--oa"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in _one_line(run(*arguments), 2)


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("rollup",), {"DATABASE_URL": AWAY}),
        (("partitions", "plan"), {"DATABASE_URL": AWAY}),
        (("migrate",), {"DATABASE_URL": AWAY}),
        (("queue", "status"), {"REDIS_URL": "redis://:password@127.0.0.1:9/0"}),
    ],
)
def test_a_server_that_is_away_is_one_line_and_status_1(
    run: Run, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    assert "password" not in _one_line(run(*arguments, env=env), 1)


def test_a_taken_port_is_one_line(run: Run, stack: Stack) -> None:
    taken = str(stack.valkey.port)
    assert taken in _one_line(run("ingest", "--port", taken), 1)


def test_a_running_stack_is_found_unless_a_variable_says_otherwise(
    run: Run, stack: Stack, environment: dict[str, str]
) -> None:
    own = tuple(environment)
    with registry.announced(stack.directory, environment):
        found = run("edges", "ann", without=own)
        assert (found.returncode, found.stdout) == (0, "")
        assert f"using the stack on {stack.directory}" in found.stderr

        kept = tuple(name for name in own if name != "DATABASE_URL")
        assert "can't be reached" in _one_line(
            run("edges", "ann", without=kept, env={"DATABASE_URL": AWAY}), 1
        )
    assert "DATABASE_URL is not set" in _one_line(run("edges", "ann", without=own), 2)
