"""Serving the app: one process, or several that share the listening socket."""

from __future__ import annotations

import socket
import sys

import uvicorn

from activity_platform.failures import PlatformError
from activity_platform.ingest.app import create_app
from activity_platform.settings import Settings

BACKLOG = 2048


def serve(settings: Settings, *, host: str, port: int, workers: int = 1) -> None:
    """Serves until SIGTERM or SIGINT, then answers what was taken and returns.

    Prints one line on standard error when it listens. Raises `PlatformError` when the port is taken, and
    `UsageError` for settings that can't work.
    """
    app = create_app(settings)
    listener = _listen(host, port)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", log_config=None, access_log=False
    )
    print(f"ingest listens on http://{host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)  # noqa: T201
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=_family(host), backlog=BACKLOG)
    except OSError as error:
        raise PlatformError(
            f"can't listen on {host}:{port} ({error.strerror}): choose another with --port"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
