"""The embedded stack: PostgreSQL, Valkey, S3 and the LINE simulator on one data directory.

    with Stack(directory) as stack:
        stack.environment  # every variable of settings.py, and AWS_*

The directory holds the data (`postgres`, `valkey`, `objects.sqlite`), the secrets and ports of the last start
(`stack.json`) and, in `run`, logs and process ids. It belongs to one stack at a time: the servers hold its
lock, too, so that a new stack waits until those of a killed one have stopped.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from activity_platform import migrations
from activity_platform.failures import PlatformError
from activity_platform.local import embedded_postgres, embedded_valkey
from activity_platform.local.files import take_lock, write_private
from activity_platform.local.server import HOST, Server
from activity_platform.settings import Settings

DATABASE = "activity"
DAGSTER_DATABASE = "dagster"
BUCKET = "activity-platform"


@dataclass
class Memory:
    """What a stack keeps from start to start: its secrets, and the ports to prefer."""

    postgres_password: str = field(default_factory=secrets.token_hex)
    valkey_password: str = field(default_factory=secrets.token_hex)
    jwt_secret: str = field(default_factory=secrets.token_hex)
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Memory:
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise PlatformError(f"{path} is damaged: remove its directory to start afresh") from error

    def save(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self), indent=1))


class Stack:
    """The servers on `directory`. `overrides` are settings of the stack's user, which win over its own.

    `durable=False` trades the safety of a power failure (not of a kill) for speed: tests do.
    """

    def __init__(
        self,
        directory: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        durable: bool = True,
        postgres_binaries: Path | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self._overrides = dict(overrides or {})
        self._durable = durable
        self._postgres_binaries = postgres_binaries
        self._lock: int | None = None

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.postgres, self.valkey, self.objects, self.line)

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts and migrates everything. Raises `PlatformError` when the directory is in use."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = take_lock(self.directory)
        try:
            self._prepare()
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_until_ready()
            self._memory.ports = {server.name: server.port for server in self.servers}
            self._memory.save(self._memory_file)
            for database in (DATABASE, DAGSTER_DATABASE):
                embedded_postgres.ensure_database(self.database_url("postgres"), database)
            migrations.upgrade(self.database_url(DATABASE))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops every server, all at once, and gives the directory free."""
        servers = self.servers if hasattr(self, "line") else ()
        for server in servers:
            server.signal_stop()
        for server in servers:
            server.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def database_url(self, database: str = DATABASE) -> str:
        return embedded_postgres.url(self.postgres.port, self._memory.postgres_password, database)

    @property
    def redis_url(self) -> str:
        return embedded_valkey.url(self.valkey.port, self._memory.valkey_password)

    @property
    def environment(self) -> dict[str, str]:
        """Every variable of `Settings`, and those that the AWS client reads."""
        defaults = {variable.name: variable.default for variable in Settings.variables().values()}
        own = {
            "DATABASE_URL": self.database_url(DATABASE),
            "DAGSTER_POSTGRES_URL": self.database_url(DAGSTER_DATABASE),
            "REDIS_URL": self.redis_url,
            "S3_BUCKET": BUCKET,
            "S3_ENDPOINT_URL": f"http://{HOST}:{self.objects.port}",
            "AWS_ACCESS_KEY_ID": "embedded",
            "AWS_SECRET_ACCESS_KEY": "embedded",
            "AWS_DEFAULT_REGION": "us-east-1",
            "LINE_API_BASE_URL": f"http://{HOST}:{self.line.port}",
            "JWT_SECRET": self._memory.jwt_secret,
        }
        chosen = {
            name: value for name, value in self._overrides.items() if name in defaults and name not in own
        }
        return defaults | chosen | own

    @property
    def _memory_file(self) -> Path:
        return self.directory / "stack.json"

    def _prepare(self) -> None:
        self._memory = Memory.load(self._memory_file)
        self._memory.save(self._memory_file)
        run = self.directory / "run"
        run.mkdir(exist_ok=True, mode=0o700)
        lock = (self._lock,) if self._lock is not None else ()
        ports = self._memory.ports
        self.postgres = embedded_postgres.server(
            self.directory / "postgres",
            run,
            self._memory.postgres_password,
            port=ports.get("postgres", 0),
            settings={} if self._durable else {"fsync": "off", "full_page_writes": "off"},
            binaries=self._postgres_binaries,
            keep_open=lock,
        )
        self.valkey = embedded_valkey.server(
            self.directory / "valkey",
            run,
            self._memory.valkey_password,
            port=ports.get("valkey", 0),
            keep_open=lock,
        )
        self.objects = Server(
            name="s3",
            directory=run,
            command=lambda port: _module(
                "object_server",
                *("--port", str(port), "--file", str(self.directory / "objects.sqlite"), "--bucket", BUCKET),
            ),
            port=ports.get("s3", 0),
            keep_open=lock,
        )
        self.line = Server(
            name="line",
            directory=run,
            command=lambda port: _module("line_simulator", "--port", str(port)),
            port=ports.get("line", 0),
            keep_open=lock,
        )


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"activity_platform.local.{name}", *arguments]
