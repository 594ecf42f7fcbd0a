"""The platform as processes of the test's own, each of which can be killed and comes back.

Two forms. With Dagster: everything that `dev` runs but its webserver. Without: the commands that do the same
work in a terminal, each started again whenever it ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg
import redis

from activity_platform.local.programs import Programs
from activity_platform.local.server import Server, free_port
from activity_platform.local.services import DAGSTER_DATABASE, Memory, Stack
from activity_platform.settings import Settings

INGEST_WORKERS = 2
RUN_AWAITED_SECONDS = 8.0

#: Outside the range of ports that the system gives to outgoing connections (32768 and up on Linux): a client
#: that calls a server which is down would otherwise, once in thousands of calls, connect to itself and so
#: take the server's port.
PORTS = range(21_000, 30_000)

#: A run that a killed code server took along before it had started is given up after this, not after minutes.
IMPATIENT = {
    "start_timeout_seconds: 180": "start_timeout_seconds: 60",
    "poll_interval_seconds: 30": "poll_interval_seconds: 5",
}

SETTINGS = {
    "ROLLUP_LAG_SECONDS": "1",
    "AUDIENCE_RETRY_SECONDS": ",".join(["1"] * 20),  # no message may be given up only because of the kills
}

COMMANDS = {
    "rollup": ["rollup"],
    "maintenance": ["partitions", "apply"],
    "drain": ["last-activity", "drain"],
    "audience worker": ["audience", "process"],
}

BACKEND = """
SELECT pid, application_name FROM pg_stat_activity
WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()
ORDER BY pid
"""
STARTED_RUNS = r"""
SELECT substring(event FROM 'Started process for run \(pid: ([0-9]+)\)'), pipeline_name
FROM event_logs JOIN runs USING (run_id)
WHERE runs.status = 'STARTED' AND event LIKE '%Started process for run (pid: %'
"""


@dataclass(frozen=True)
class Victim:
    """`kill` kills it with SIGKILL and says what died, or None when there was nothing to kill just now.
    `restore` returns once it works again; nobody else would bring it back."""

    name: str
    kill: Callable[[], str | None]
    restore: Callable[[], object] = lambda: None


#: A command line of the platform over and over, in one process: most of a short command's time is its start.
OVER_AND_OVER = """
import sys, time
from activity_platform.cli import main
while True:
    try:
        main(sys.argv[1:])
    except SystemExit:
        time.sleep(0.2)
"""


class Again:
    """A command of the platform, over and over, in a process that is started again when it is killed."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", OVER_AND_OVER, *self._arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> str | None:
        """None if it does not run."""
        if self._process is None:
            return None
        self._process.kill()
        self._process.wait()
        pid, self._process = self._process.pid, None
        return f"process {pid}"


class Site:
    """A running platform, within a `with` block."""

    def __init__(
        self, directory: Path, chance: random.Random, *, with_dagster: bool, durable: bool = True
    ) -> None:
        self._directory = directory
        self._chance = chance
        self._with_dagster = with_dagster
        Memory(ports=_steady_ports("postgres", "valkey", "s3", "line")).save(directory / "stack.json")
        binaries = os.environ.get("POSTGRES_BIN")
        self._stack = Stack(
            directory,
            overrides=SETTINGS,
            durable=durable,
            postgres_binaries=Path(binaries) if binaries else None,
        )
        self._orphans: dict[int, str] = {}
        self._commands: dict[str, Again] = {}

    def __enter__(self) -> Self:
        self._stack.start()
        self._programs = self._make_programs()
        try:
            self._insist_on_the_disk()
            for server in self._servers:
                server.start()
            self._start_commands()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_commands()
        for server in reversed(self._servers):
            server.stop()
        for pid, identity in self._orphans.items():  # unless the number is another process's by now
            if identity and _identity(pid) == identity:
                os.kill(pid, signal.SIGKILL)
        self._stack.stop()

    @property
    def environment(self) -> dict[str, str]:
        return self._programs.environment

    @property
    def settings(self) -> Settings:
        return Settings.load(self.environment)

    @property
    def api_url(self) -> str:
        return self._programs.api_url

    @property
    def logs(self) -> Path:
        return self._directory / "run"

    def stop_commands(self) -> None:
        """From here on only Dagster works, if there is one."""
        for command in self._commands.values():
            command.kill()

    @property
    def victims(self) -> list[Victim]:
        """Everything that can die."""
        ingest, postgres, valkey = self._programs.ingest, self._stack.postgres, self._stack.valkey
        found = [
            Victim("ingest worker", lambda: self._kill_child(ingest), ingest.wait_until_ready),
            Victim("ingest", lambda: self._kill(ingest), lambda: self._start_again(ingest)),
            Victim("valkey", lambda: self._kill(valkey), self._start_valkey),
            Victim("postgres", lambda: self._kill(postgres), lambda: self._start_again(postgres)),
            Victim("postgres backend", self._kill_backend, postgres.wait_until_ready),
        ]
        found += [Victim(name, one.kill, one.start) for name, one in self._commands.items()]
        return found + (self._victims_of_dagster() if self._with_dagster else [])

    def revive(self) -> Iterator[str]:
        """Starts what ended by itself, as a supervisor would, and names it."""
        for server in self._servers:
            if not server.alive:
                self._start_again(server)
                yield server.name

    def working_runs(self) -> dict[int, str]:
        """Process and job of the code server's runs that have started."""
        with psycopg.connect(self._stack.database_url(DAGSTER_DATABASE)) as connection:
            started = {int(pid): str(job) for pid, job in connection.execute(STARTED_RUNS)}
        children = _workers_of(self._programs.code.pid or 0)
        return {pid: job for pid, job in started.items() if pid in children}

    def has_process(self, pid: int) -> bool:
        """Whether that process of the code server lives."""
        return pid in _workers_of(self._programs.code.pid or 0)

    @contextmanager
    def without_postgres(self) -> Iterator[None]:
        """Within it, PostgreSQL is stopped."""
        self._stack.postgres.stop()
        yield
        self._start_again(self._stack.postgres)
        list(self.revive())

    def _victims_of_dagster(self) -> list[Victim]:
        code, daemon = self._programs.code, self._programs.daemon
        return [
            Victim("code server", lambda: self._kill(code), self._start_code_server),
            Victim("code server and its runs", self._kill_group, self._start_code_server),
            Victim("daemon", lambda: self._kill(daemon), daemon.start),
            Victim("run", self._kill_run),
        ]

    @property
    def _servers(self) -> tuple[Server, ...]:
        programs = self._programs
        return (programs.ingest, programs.code, programs.daemon) if self._with_dagster else (programs.ingest,)

    def _make_programs(self) -> Programs:
        home = self._directory / "dagster"
        home.mkdir(mode=0o700)
        ports = _steady_ports("code", "ingest")
        (home / "code-port").write_text(str(ports["code"]))
        programs = Programs(self._directory, self._stack.environment)
        for before, after in IMPATIENT.items():
            text = (home / "dagster.yaml").read_text()
            assert before in text
            (home / "dagster.yaml").write_text(text.replace(before, after))
        alone = programs.ingest.command
        programs.ingest.command = lambda port: [*alone(port), "--workers", str(INGEST_WORKERS)]
        programs.ingest.port = ports["ingest"]
        return programs

    def _start_commands(self) -> None:
        # Beside Dagster's own fold and maintenance: many at once is allowed.
        names = ("rollup", "maintenance") if self._with_dagster else tuple(COMMANDS)
        for name in names:
            log = self.logs / f"{name.replace(' ', '-')}.log"
            self._commands[name] = Again(COMMANDS[name], self.environment, log)
            self._commands[name].start()

    def _start_again(self, server: Server) -> None:
        """On the same port, which others may hold for a moment: workers that outlive their supervisor."""
        deadline = time.monotonic() + 30
        while free_port(server.port) != server.port:
            assert time.monotonic() < deadline, f"the port of {server.name} doesn't get free"
            time.sleep(0.05)
        port = server.port
        server.start()
        assert server.port == port

    def _start_valkey(self) -> None:
        self._start_again(self._stack.valkey)
        self._insist_on_the_disk()

    def _insist_on_the_disk(self) -> None:
        with redis.Redis.from_url(self._stack.redis_url) as client:
            client.config_set("appendfsync", "always")

    def _start_code_server(self) -> None:
        """As every deployment does: what died with the last one is reported first."""
        subprocess.run(
            [sys.executable, "-m", "activity_platform.defs.lost_runs"],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        self._start_again(self._programs.code)

    def _kill(self, server: Server) -> str | None:
        if (pid := server.pid) is None:
            return None
        self._orphans |= {one: _identity(one) for one in _workers_of(pid)}  # they outlive it
        server.kill()
        return f"process {pid}"

    def _kill_group(self) -> str | None:
        """The code server with all its runs, as when its container is killed."""
        if (pid := self._programs.code.pid) is None:
            return None
        runs = len(_workers_of(pid))
        os.killpg(pid, signal.SIGKILL)
        self._programs.code.stop()
        return f"process {pid} and {runs} runs"

    def _kill_child(self, server: Server) -> str | None:
        if not (children := _workers_of(server.pid or 0)):
            return None
        child = self._chance.choice(children)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            return f"process {child}"
        return None

    def _kill_run(self) -> str | None:
        """One that works, if there is one within some seconds; else one that begins."""
        deadline = time.monotonic() + RUN_AWAITED_SECONDS
        while not (working := self.working_runs()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if not working:
            return self._kill_child(self._programs.code)
        pid = self._chance.choice(sorted(working))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return f"process {pid} of {working[pid]}"
        return None

    def _kill_backend(self) -> str | None:
        """PostgreSQL then ends all its sessions and recovers from its log."""
        with psycopg.connect(self.settings.database_url) as connection:
            found = connection.execute(BACKEND).fetchall()
        if not found:
            return None
        pid, of = self._chance.choice(found)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)  # until the server has noticed
            return f"process {pid} of {of or 'a client'}"
        return None


def _workers_of(pid: int) -> list[int]:
    """The Python processes that it started to work for it, by `multiprocessing`."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split(None, 2) for line in listed.splitlines())
    return [int(row[0]) for row in rows if row[1] == str(pid) and "spawn_main" in row[-1]]


def _identity(pid: int) -> str:
    """What tells a process from a later one of the same number: its start and its command."""
    return subprocess.run(
        ["ps", "-ww", "-o", "lstart=,args=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout


def _steady_ports(*names: str) -> dict[str, int]:
    """Free ports outside those of outgoing connections. Chosen anew if somebody has them."""
    ports: dict[str, int] = {}
    for name in names:
        while (port := random.choice(PORTS)) in ports.values() or free_port(port) != port:
            pass
        ports[name] = port
    return ports
