"""The platform's own programs on an embedded stack: ingest, Dagster's code server, webserver and daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

import activity_platform
from activity_platform.failures import PlatformError
from activity_platform.local.server import HOST, Server, free_port

INGEST_PORT = 8000
WEBSERVER_PORT = 3000
PROJECT = Path(activity_platform.__file__).parent.parent


class Programs:
    """Everything that `dev` runs beside the stack. `directory` takes Dagster's home and the logs (`run`)."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        home = directory / "dagster"
        self._run = directory / "run"
        for part in (home, self._run):
            part.mkdir(exist_ok=True, parents=True, mode=0o700)
        shutil.copyfile(_project_file("dagster.yaml"), home / "dagster.yaml")
        self.environment = {
            **environment,
            "DAGSTER_HOME": str(home),
            "DAGSTER_CODE_HOST": HOST,
            "DAGSTER_CODE_PORT": str(self._code_port(home)),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONUNBUFFERED": "1",
        }
        workspace = ("--workspace", str(_project_file("workspace.yaml")))
        bin_directory = Path(sys.executable).parent

        self.ingest = self._server(
            "ingest",
            [str(bin_directory / "activity-platform"), "ingest"],
            path="/readyz",
            port=INGEST_PORT,
        )
        self.code = self._server(
            "code",
            [
                *(str(bin_directory / "dagster"), "api", "grpc", "--log-level", "warning"),
                *("--module-name", "activity_platform.definitions"),
            ],
            port=int(self.environment["DAGSTER_CODE_PORT"]),
        )
        self.webserver = self._server(
            "webserver",
            [str(bin_directory / "dagster-webserver"), "--host", HOST, "--log-level", "warning", *workspace],
            path="/server_info",
            port=WEBSERVER_PORT,
        )
        self.daemon = Server(
            name="daemon",
            directory=self._run,
            command=lambda _port: [
                str(bin_directory / "dagster-daemon"),
                *("run", "--log-level", "warning", *workspace),
            ],
            ready=lambda _port: True,  # it listens nowhere
            environment=self.environment,
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.ingest, self.code, self.webserver, self.daemon)

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.ingest.port}"

    @property
    def ui_url(self) -> str:
        return f"http://{HOST}:{self.webserver.port}"

    def __enter__(self) -> Programs:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops all of them at once."""
        for server in self.servers:
            server.signal_stop()
        for server in self.servers:
            server.stop()

    def _start(self) -> None:
        self.ingest.launch()
        # The code server creates Dagster's tables; programs that do so at the same time fail.
        self.code.start()
        self._report_lost_runs()
        self.webserver.launch()
        self.daemon.launch()
        for server in self.servers:
            server.wait_until_ready()

    def _code_port(self, home: Path) -> int:
        # The same from start to start: Dagster tells by it which runs were this code server's.
        file = home / "code-port"
        self._restarted = file.exists()
        port = free_port(int(file.read_text()) if self._restarted else 0)
        file.write_text(str(port))
        return port

    def _report_lost_runs(self) -> None:
        # What a killed platform left under way would keep its schedules from starting the next run.
        if self._restarted:
            subprocess.run(
                [sys.executable, "-m", "activity_platform.defs.lost_runs"],
                env={**os.environ, **self.environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def _server(self, name: str, command: list[str], *, port: int, path: str | None = None) -> Server:
        def listening(port: int) -> list[str]:
            return [*command, "--port", str(port)]

        if path is None:
            return Server(name, self._run, listening, port=port, environment=self.environment)
        return Server(
            name,
            self._run,
            listening,
            ready=lambda port: _answers(f"http://{HOST}:{port}{path}"),
            port=port,
            environment=self.environment,
        )


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def _project_file(name: str) -> Path:
    path = PROJECT / name
    if not path.exists():
        raise PlatformError(f"{name} is missing beside the package: run this from a checkout of the project")
    return path
