"""`activity-platform erase` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from activity_platform_tests.command_line import run_command
from activity_platform_tests.simulated_line import user_id

MAIN = "from activity_platform.cli import main; main(prog_name='activity-platform')"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_command(("erase", *arguments), {**os.environ, **environment, **more})

    return run


def _line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return dict(json.loads(line))


@pytest.fixture
def ann(connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id)"
        " VALUES ('ann', 'save', 'event', 'e'), ('bob', 'react', 'user', 'ann'), ('bob', 'tap', 'event', 'e')"
    )


@pytest.mark.usefixtures("ann")
def test_a_user_is_counted_recorded_and_erased(run: Run, connection: psycopg.Connection) -> None:
    assert _line(run("ann", "--dry-run")) == {
        "events": 2, "edges": 0, "idempotency_keys": 0, "training_files": 0,
    }  # fmt: skip
    assert connection.execute("SELECT count(*) FROM erasure").fetchone() == (0,)
    recorded = _line(run("ann", "--background"))
    assert (recorded["status"], recorded["kind"], recorded["counts"]) == ("pending", "user", {})
    erased = _line(run("ann"))  # the same request
    assert (erased["erasure"], erased["status"]) == (recorded["erasure"], "done")
    assert erased["counts"] == {"events": 2}
    assert connection.execute("SELECT user_id FROM activity_events").fetchall() == [("bob",)]


@pytest.mark.usefixtures("ann")
def test_what_is_pending_is_carried_on(run: Run, connection: psycopg.Connection) -> None:
    run("ann", "--background")
    connection.execute("INSERT INTO line_oa (id, organization_id, hash) VALUES (7, 1, 'h')")
    run("--line-user", "7", user_id(1), "--background")
    done = run("--pending")
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["done", "done"]


def test_an_account_is_erased(run: Run, connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO line_oa (id, organization_id, hash) VALUES (7, 1, 'h')")
    assert _line(run("--oa", "7", "--dry-run"))["line_users"] == 0
    assert _line(run("--oa", "7"))["counts"] == {"accounts": 1}


def test_wrong_use_is_one_line(run: Run) -> None:
    for arguments, said in (
        ([], "name one of USER, --line-user OA USER, --oa OA or --pending"),
        (["ann", "--oa", "1"], "name one of USER"),
        ([" "], "not blank"),
        (["x" * 257], "1 to 256 characters"),
        (["--line-user", "99", "U1"], "there is no official account 99: `activity-platform oa list` shows"),
        (["--oa", "99"], "there is no official account 99"),
        (["ann"], "S3_BUCKET is not set, so training files can't be rewritten"),
    ):
        done = run(*arguments, **({"S3_BUCKET": ""} if arguments == ["ann"] else {}))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr


@pytest.mark.usefixtures("ann")
def test_without_storage_one_says_that_there_never_were_files(run: Run) -> None:
    assert _line(run("ann", "--no-files", S3_BUCKET=""))["counts"] == {"events": 2}


@pytest.mark.usefixtures("ann")
def test_a_terminal_shows_the_counts_and_asks(
    environment: dict[str, str], connection: psycopg.Connection
) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "erase", "ann"],
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        os.close(slave)
        os.write(master, b"n\n")
        said = bytearray()
        while piece := _read(master):
            said += piece
    os.close(master)
    assert process.returncode == 130
    assert "erase all of this" in said.decode()
    assert re.search(r"events +2", said.decode())
    assert connection.execute("SELECT count(*) FROM erasure").fetchone() == (0,)


def _read(master: int) -> bytes:
    try:
        return os.read(master, 4096)
    except OSError:  # the other side is closed
        return b""
