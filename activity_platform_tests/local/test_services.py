"""The stack keeps its data, belongs to one process, and stops on a signal or at the end of its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import psycopg
import pytest
import redis

from activity_platform.local.files import is_locked
from activity_platform.local.services import Stack
from activity_platform.settings import Settings

PROGRAM = str(Path(sys.executable).parent / "activity-platform")


def _until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _s3(environment: dict[str, str]):  # type: ignore[no-untyped-def]
    return boto3.client(
        "s3",
        endpoint_url=environment["S3_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )


def _start_services(directory: Path, *, parent: bool = False) -> tuple[subprocess.Popen[bytes], Path]:
    file = directory.with_suffix(".env")
    command = [PROGRAM, "services", "--data-dir", str(directory), "--env-file", str(file)]
    if parent:  # a process between us and the stack, which can be killed
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _until(file.exists)
    return process, file


def test_data_and_secrets_survive_a_restart(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack") as stack:
        before = stack.environment
        with psycopg.connect(before["DATABASE_URL"]) as connection:
            connection.execute("CREATE TABLE kept (n int)")
        with redis.Redis.from_url(before["REDIS_URL"]) as client:
            client.xadd("kept", {"payload": "1"})
        _s3(before).put_object(Bucket=before["S3_BUCKET"], Key="ราย ชื่อ+1 (2).csv", Body=b"kept")
        _s3(before).put_object(Bucket=before["S3_BUCKET"], Key="dropped", Body=b"x")
        _s3(before).delete_object(Bucket=before["S3_BUCKET"], Key="dropped")

    with Stack(tmp_path / "stack") as stack:
        after = stack.environment
        assert after["JWT_SECRET"] == before["JWT_SECRET"]
        with psycopg.connect(after["DATABASE_URL"]) as connection:
            connection.execute("SELECT n FROM kept")
        with redis.Redis.from_url(after["REDIS_URL"]) as client:
            assert client.xlen("kept") == 1
        listed = _s3(after).list_objects_v2(Bucket=after["S3_BUCKET"])
        assert [item["Key"] for item in listed["Contents"]] == ["ราย ชื่อ+1 (2).csv"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_server_and_removes_the_environment_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    process, file = _start_services(tmp_path / "stack")
    environment = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert {variable.name for variable in Settings.variables().values()} <= environment.keys()
    assert file.stat().st_mode & 0o077 == 0

    process.send_signal(number)

    assert process.wait(30) == 0
    assert not is_locked(tmp_path / "stack")
    assert not file.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(environment["DATABASE_URL"])


def test_a_second_start_on_the_same_directory_is_refused_in_one_line(stack: Stack) -> None:
    second = subprocess.run(
        [PROGRAM, "services", "--data-dir", str(stack.directory)], capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert f"a stack runs on {stack.directory} already" in second.stderr
    with psycopg.connect(stack.database_url("postgres")) as connection:
        connection.execute("SELECT 1")


def test_a_killed_stack_leaves_no_server_behind_and_its_directory_usable(tmp_path: Path) -> None:
    process, _ = _start_services(tmp_path / "stack")
    process.kill()
    process.wait()
    with Stack(tmp_path / "stack") as stack, psycopg.connect(stack.database_url()) as connection:
        connection.execute("SELECT 1")


def test_the_stack_stops_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent, file = _start_services(tmp_path / "stack", parent=True)
    parent.kill()
    parent.wait()
    _until(lambda: not is_locked(tmp_path / "stack"))
    _until(lambda: not file.exists())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_runs_as_an_ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = Path("/tmp") / f"activity-platform-test-{os.getpid()}"  # where everybody may go
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    code = (
        "import os; os.setgid(65534); os.setgroups([]); os.setuid(65534); os.environ['HOME'] = '/nowhere'\n"
        "from pathlib import Path; from activity_platform.local.services import Stack\n"
        f"with Stack(Path({str(directory / 'stack')!r})) as stack: print('up')"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if "Permission denied" in done.stderr or "ModuleNotFoundError" in done.stderr:
            pytest.skip("this checkout lies where another user can't read it")
        assert done.stdout == "up\n", done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(directory)], check=True)
