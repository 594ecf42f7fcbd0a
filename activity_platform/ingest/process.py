"""One serving process: the app on uvicorn."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from activity_platform.ingest.app import create_app
from activity_platform.ingest.protocol import PoliteProtocol
from activity_platform.settings import Settings

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75  # longer than the idle time of usual load balancers (60 s), so that they close first
STOP_SECONDS = 40  # longer than a stalled body is waited for
LATE_SECONDS = 0.05  # how often a stopping server looks for connections that it has not told yet


def run(
    settings: Settings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    stop_signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT),
) -> None:
    """Serves in this process until one of `stop_signals`."""
    config = uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http=PoliteProtocol,
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    _spare_the_collector()
    Server(config, on_ready, stop_signals).run(sockets=[listener])


def _spare_the_collector() -> None:
    """A request makes hundreds of objects and no cycle. Looking every 700 took a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 50)


class Server(uvicorn.Server):
    """uvicorn's server. It tells when it is ready, and returns after a stop signal instead of raising it."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], stop_signals: tuple[signal.Signals, ...]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._stop_signals = stop_signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for _ in range(2):  # connections that wait in the listener are accepted: its end would reset them
            await asyncio.sleep(0)
        late = asyncio.create_task(self._end_late_connections())
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    async def _end_late_connections(self) -> None:
        """uvicorn tells each connection once that the server stops. One that was accepted just then is told
        here, or a busy client would be served on it until the time to stop is over."""
        while True:
            await asyncio.sleep(LATE_SECONDS)
            for connection in list(self.server_state.connections):
                if isinstance(connection, PoliteProtocol) and not connection.stopping:
                    connection.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in self._stop_signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
