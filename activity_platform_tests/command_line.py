"""`activity-platform …` as a process for each command, forked from one that has imported everything.

Importing is most of what a short command takes. The child has an environment, standard streams and an exit
status of its own, as one that was started from a shell has.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "activity_platform.cli",
        "activity_platform.migrations",
        "activity_platform.activity.maintenance",
        "activity_platform.audience.integration",
        "activity_platform.audience.upload",
        "activity_platform.last_activity.drain",
        "alembic.command",
    ]
)


def run_command(
    arguments: tuple[str, ...], environment: Mapping[str, str], *, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `activity-platform` with those arguments prints and ends with, when `typed` is what it reads."""
    with tempfile.TemporaryDirectory() as name:
        streams = [Path(name) / stream for stream in ("stdin", "stdout", "stderr")]
        streams[0].write_text(typed)
        child = CONTEXT.Process(target=_main, args=(arguments, dict(environment), streams))
        child.start()
        child.join()
        assert child.exitcode is not None
        _, stdout, stderr = (stream.read_text() for stream in streams)
    return subprocess.CompletedProcess(arguments, child.exitcode, stdout, stderr)


def _main(arguments: tuple[str, ...], environment: dict[str, str], streams: list[Path]) -> None:
    from activity_platform.cli import main

    os.environ.clear()
    os.environ.update(environment)
    for number, (stream, flags) in enumerate(
        zip(streams, (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
    ):
        os.dup2(os.open(stream, flags, 0o600), number)
    sys.stdin = os.fdopen(0)
    main(arguments, prog_name="activity-platform")
