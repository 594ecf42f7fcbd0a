"""What the running commands show and heed: labelled logs, signals, the end of their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from activity_platform.local.server import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.3
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red", "bright_cyan", "bright_green")


class Stopped(BaseException):
    """Somebody asked this process to stop."""


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Within it, SIGINT, SIGTERM, SIGHUP and the end of the parent raise `Stopped`, once.

    A process that was put in the background on purpose (nohup, setsid, `&` in a script) outlives its parent.
    """
    detached = os.getsid(0) == os.getpid() or signal.SIG_IGN in map(signal.getsignal, SIGNALS)

    def stop(_number: int, _frame: object) -> None:
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        raise Stopped

    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    if not detached:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(Stopped):
        yield


def _watch_parent(parent: int) -> None:
    ticks = threading.Event()
    while os.getppid() == parent:
        ticks.wait(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def labelled_logs(servers: Sequence[Server], console: Console) -> Iterator[None]:
    """Within it, what the servers log from now on appears on the console, labelled with their names."""
    ended = threading.Event()
    followers = [
        _Follower(server.log, Text(f"{server.name:<9} ", style=COLOURS[index % len(COLOURS)]))
        for index, server in enumerate(servers)
    ]

    def follow() -> None:
        while not ended.wait(POLL_SECONDS):
            for follower in followers:
                follower.print_new_lines(console)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Follower:
    def __init__(self, path: Path, label: Text) -> None:
        self._path = path
        self._label = label
        self._position = path.stat().st_size if path.exists() else 0

    def print_new_lines(self, console: Console) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._position)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            if line.strip() and not _is_access_line(line):
                console.print(self._label + Text.from_ansi(line), soft_wrap=True)


def _is_access_line(line: str) -> bool:
    # The HTTP app writes one such line a request; they stay in the file.
    return line.startswith("{") and '"status":2' in line
