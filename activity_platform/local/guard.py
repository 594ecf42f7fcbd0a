"""Runs one server and stops it when the process that asked for it is gone. Started as a script.

    python guard.py PIDFILE SIGNAL GRACE COMMAND…

The parent holds the other end of standard input. When that end closes, the parent having stopped or having
been killed, the server gets SIGNAL, then what it left behind SIGTERM, and after GRACE seconds all of it
SIGKILL. PIDFILE holds the server's process id while it runs. The exit status is the server's. Standard
library only: it starts in some ten milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.05


def main(pid_file: Path, stop_signal: int, grace_seconds: float, command: list[str]) -> int:
    # Ctrl-C reaches the whole process group, but the order of stopping is the parent's. A handler and not
    # SIG_IGN, which the server would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    pid_file.write_text(str(server.pid))
    try:
        while server.poll() is None:
            readable, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
            if ended in readable:
                os.read(ended, 512)
            if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 1):
                _stop(server, stop_signal, grace_seconds)
    finally:
        pid_file.unlink(missing_ok=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _stop(server: "subprocess.Popen[bytes]", stop_signal: int, grace_seconds: float) -> None:
    deadline = time.monotonic() + grace_seconds
    server.send_signal(stop_signal)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(grace_seconds)
    # What it started and left behind, such as the runs of Dagster's code server.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            os.killpg(server.pid, 0)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
