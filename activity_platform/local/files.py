"""Files of the stack's directory: its lock, and what only its owner may read."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from activity_platform.failures import PlatformError

TAKEOVER_SECONDS = 30  # how long the servers of a killed stack may take to stop


def take_lock(directory: Path) -> int:
    """Makes the directory this process's own and returns the descriptor that holds it.

    Waits for the servers of a killed stack to stop. Raises `PlatformError` when a stack runs on it.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + TAKEOVER_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode()
            if process_lives(owner) or time.monotonic() > deadline:
                os.close(descriptor)
                raise PlatformError(
                    f"a stack runs on {directory} already (process {owner or 'unknown'}): "
                    "stop it, or choose another directory with --data-dir"
                ) from None
            time.sleep(0.1)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def is_locked(directory: Path) -> bool:
    """Whether a stack runs on the directory."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def process_lives(pid: str) -> bool:
    """Whether a process of that id exists."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def write_private(path: Path, text: str) -> None:
    """Writes the file in one step, readable by its owner alone."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
