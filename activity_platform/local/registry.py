"""Where a running stack leaves its environment, so that commands in another terminal find it.

One file a stack under `$XDG_STATE_HOME/activity-platform/stacks` (`~/.local/state` by default), readable by
its user alone. A file whose stack no longer holds its directory's lock is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from activity_platform.failures import PlatformError
from activity_platform.local.files import is_locked, write_private

DIRECTORY_LINE = "# stack on "


@dataclass(frozen=True)
class RunningStack:
    """A stack that is up: its data directory and every variable that its programs need."""

    directory: Path
    environment: Mapping[str, str]


@contextlib.contextmanager
def announced(directory: Path, environment: Mapping[str, str], also: Path | None = None) -> Iterator[None]:
    """Within it, `find` names the stack on `directory`, and the file `also` holds its environment."""
    entry = _entries() / f"{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}.env"
    lines = "".join(f"{name}={value}\n" for name, value in environment.items())
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(entry, f"{DIRECTORY_LINE}{directory}\n{lines}")
        if also is not None:
            write_private(also, lines)
    except OSError as error:
        raise PlatformError(f"the stack's environment can't be written: {error}") from error
    try:
        yield
    finally:
        entry.unlink(missing_ok=True)
        if also is not None:
            also.unlink(missing_ok=True)


def find() -> tuple[RunningStack, ...]:
    """The stacks that run, the one started last first."""
    try:
        entries = sorted(_entries().glob("*.env"), key=lambda path: path.stat().st_mtime, reverse=True)
        stacks = [_read(entry.read_text()) for entry in entries]
    except OSError:
        return ()
    return tuple(stack for stack in stacks if is_locked(stack.directory))


def _entries() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "activity-platform" / "stacks"


def _read(text: str) -> RunningStack:
    first, *lines = text.splitlines()
    return RunningStack(
        directory=Path(first.removeprefix(DIRECTORY_LINE)),
        environment=dict(line.split("=", 1) for line in lines if "=" in line),
    )
