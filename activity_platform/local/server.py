"""One server process of the embedded stack: started under a guard, waited for, stopped or killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from activity_platform.failures import PlatformError
from activity_platform.local import guard

HOST = "127.0.0.1"
START_SECONDS = 60
START_TRIES = 3  # a free port may be taken by another program between the choice and the start
POLL_SECONDS = 0.05


def free_port(preferred: int = 0) -> int:
    """A TCP port of the loopback interface that nobody listens on, `preferred` if it is one."""
    for candidate in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise PlatformError("no free port on the loopback interface")


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


@dataclass
class Server:
    """A server on a loopback port. `command` and `ready` are asked anew at each start, with its port.

    `directory` takes its log (`<name>.log`) and its process id (`<name>.pid`). `keep_open` are file
    descriptors that stay open as long as the server lives.
    """

    name: str
    directory: Path
    command: Callable[[int], Sequence[str]]
    ready: Callable[[int], bool] = accepts_connections
    port: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 15
    environment: Mapping[str, str] | None = None
    keep_open: tuple[int, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The server's own process id, None when it does not run."""
        try:
            return int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None

    @property
    def _pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    def launch(self) -> None:
        """Starts the process without waiting; on its last port if that is free."""
        self.port = free_port(self.port)
        self._pid_file.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-S", "-E", guard.__file__),
            *(str(self._pid_file), str(int(self.stop_signal)), str(self.stop_seconds)),
            *self.command(self.port),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=None if self.environment is None else {**os.environ, **self.environment},
                start_new_session=True,
                pass_fds=self.keep_open,
            )

    def wait_until_ready(self) -> None:
        """Returns once the server answers; raises `PlatformError` with its log's end if it never does."""
        for left in reversed(range(START_TRIES)):
            deadline = time.monotonic() + START_SECONDS
            while self.alive and time.monotonic() < deadline:
                if self.ready(self.port):
                    return
                time.sleep(POLL_SECONDS)
            self.stop()
            if left:
                self.launch()
        raise PlatformError(f"{self.name} did not start: {self._last_words()} (see {self.log})")

    def start(self) -> None:
        """`launch` and `wait_until_ready`."""
        self.launch()
        self.wait_until_ready()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal_stop(self) -> None:
        """Asks the server to stop, without waiting."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Stops the server and waits until it is gone. Nothing happens if it is gone already."""
        self.signal_stop()
        if self._process is not None:
            self._process.wait()

    def kill(self) -> None:
        """kill -9 of the server itself; returns when it is gone."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        self.stop()

    def raise_if_ended(self) -> None:
        """Raises `PlatformError` when the server ended by itself."""
        if not self.alive:
            raise PlatformError(f"{self.name} ended: {self._last_words()} (see {self.log})")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"
