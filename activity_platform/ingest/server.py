"""Serving the API: one process, or several that share the listening socket."""

from __future__ import annotations

import socket

import click

from activity_platform.failures import PlatformError
from activity_platform.ingest.process import BACKLOG, run
from activity_platform.ingest.workers import supervise
from activity_platform.settings import Settings


def serve(settings: Settings, *, host: str, port: int, workers: int = 1) -> None:
    """Serves until SIGTERM or SIGINT, then answers what was taken and returns.

    Prints one line on standard error once it serves. Raises `PlatformError` when the port is taken, and
    `UsageError` for settings that can't work.
    """
    with _listener(host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        line = f"ingest listens on http://{address}:{listener.getsockname()[1]}"
        if workers > 1:
            supervise(settings, listener, workers, on_ready=lambda: click.echo(line, err=True))
        else:
            run(settings, listener, on_ready=lambda: click.echo(line, err=True))


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PlatformError(
            f"can't listen on {host}:{port} ({error.strerror}): stop what does, or choose another --port"
        ) from error
