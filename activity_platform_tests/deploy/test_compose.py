"""docker-compose.yml keeps its promises, read as compose reads it. `test_commands.py` runs what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from activity_platform.settings import Settings
from activity_platform_tests.deploy.composition import (
    PROJECT,
    VariableMissing,
    new_secrets,
    read_composition,
)

#: Where the stack's own servers are is not for .env to say.
FIXED = {"DATABASE_URL", "REDIS_URL", "S3_ENDPOINT_URL", "DAGSTER_POSTGRES_URL"}
LOOPBACK_PORT = re.compile(r"127\.0\.0\.1:\d*:\d+")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return new_secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def services(secrets: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = read_composition(secrets)["services"]
    return found


def _of_the_platform(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if "build" in service}


def test_without_any_one_of_its_secrets_compose_says_to_run_make_env(secrets: dict[str, str]) -> None:
    assert len(secrets) == 5
    for name in secrets:
        for environment in (secrets | {name: ""}, {key: secrets[key] for key in secrets if key != name}):
            with pytest.raises(VariableMissing, match=r"\Arun make env\Z"):
                read_composition(environment)


def test_make_env_writes_fresh_secrets_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    written = []
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        shutil.copy(PROJECT / "Makefile", directory)
        shutil.copytree(PROJECT / "deploy", directory / "deploy")
        first = subprocess.run(["make", "env"], cwd=directory, capture_output=True, text=True, check=False)
        assert first.returncode == 0, first.stderr
        assert (directory / ".env").stat().st_mode & 0o777 == 0o600
        written.append((directory / ".env").read_text())

    again = subprocess.run(["make", "env"], cwd=directory, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert ".env exists" in again.stderr
    assert (directory / ".env").read_text() == written[-1]
    values = [re.findall(r"^[A-Z_0-9]+=([0-9a-f]{20,})$", text, re.MULTILINE) for text in written]
    assert len({*values[0], *values[1]}) == 10


def test_every_setting_reaches_the_programs_that_load_settings(secrets: dict[str, str]) -> None:
    names = {variable.name for variable in Settings.variables().values()}
    chosen = {name: f"chosen {name}" for name in names - FIXED}
    services = read_composition(secrets | chosen)["services"]
    for service in (services["code"], services["ingest"], services["migrate"]):
        assert names - service["environment"].keys() == set(), "to be added to x-platform of the file"
        assert {name: service["environment"][name] for name in chosen} == chosen


def test_webserver_and_daemon_know_no_secret_but_dagsters_own(
    services: dict[str, Any], secrets: dict[str, str]
) -> None:
    for name in ("webserver", "daemon"):
        text = str(services[name])
        assert {key for key, value in secrets.items() if value in text} == {"POSTGRES_PASSWORD"}


def test_ports_are_published_on_the_loopback_interface_alone(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 4
    assert all(LOOPBACK_PORT.fullmatch(port) for port in published)


@pytest.mark.parametrize(
    ("service", "variable"),
    [
        *(("postgres", "POSTGRES_IMAGE"), ("valkey", "VALKEY_IMAGE"), ("s3", "S3_IMAGE")),
        *((name, "PLATFORM_IMAGE") for name in ("migrate", "code", "daemon", "webserver", "ingest")),
    ],
)
def test_each_image_can_be_replaced(secrets: dict[str, str], service: str, variable: str) -> None:
    services = read_composition(secrets | {variable: "other", "BASE_IMAGE": "base"})["services"]
    assert services[service]["image"] == "other"
    assert services[service].get("build", {}).get("args", {}).get("BASE_IMAGE", "base") == "base"


def test_what_runs_on_comes_back_stops_in_its_time_and_logs_within_bounds(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
        assert service["stop_grace_period"] == "65s"
        assert service["init"] is True
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_each_waits_for_the_health_of_what_it_needs(services: dict[str, Any]) -> None:
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            runs_once = needed == "migrate"
            assert how["condition"] == ("service_completed_successfully" if runs_once else "service_healthy")
            assert runs_once or services[needed]["healthcheck"]["test"]
    for name in ("code", "ingest"):
        assert services[name]["depends_on"].keys() == {"migrate", "postgres", "valkey", "s3"}
    for name in ("daemon", "webserver"):
        assert services[name]["depends_on"].keys() == {"code", "postgres"}
    assert services["migrate"]["depends_on"].keys() == {"postgres", "s3"}
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"migrate"}


def test_the_platforms_programs_can_change_nothing_but_their_volumes(services: dict[str, Any]) -> None:
    for service in _of_the_platform(services).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["mem_limit"]
        assert "no-new-privileges:true" in service["security_opt"]
    assert re.search(r"^USER 10001$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)


def test_data_outlives_its_container(services: dict[str, Any], secrets: dict[str, str]) -> None:
    volumes = read_composition(secrets)["volumes"]
    mounts = [mount for service in services.values() for mount in service.get("volumes", ())]
    assert {mount.partition(":")[0] for mount in mounts} == volumes.keys()
    assert services["postgres"]["environment"]["PGDATA"].startswith("/var/lib/postgresql/")


def test_the_webserver_shows_only_unless_it_is_told_otherwise(secrets: dict[str, str]) -> None:
    commands = [
        read_composition(secrets | chosen)["services"]["webserver"]["command"]
        for chosen in ({}, {"WEBSERVER_OPTIONS": ""}, {"WEBSERVER_OPTIONS": "--path-prefix /dagster"})
    ]
    assert ["--read-only" in command for command in commands] == [True, False, False]


def test_the_image_is_built_from_files_that_reach_the_build() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    ignore = (PROJECT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert sources == {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert all((PROJECT / source).exists() for source in sources)
