"""Several worker processes on one listening socket: started, replaced when one dies, stopped together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import click
from prometheus_client.multiprocess import mark_process_dead

from activity_platform.ingest.metrics import SHARED_DIRECTORY
from activity_platform.ingest.process import STOP_SECONDS, run
from activity_platform.ingest.token_keys import token_keys
from activity_platform.settings import Settings

POLL_SECONDS = 0.2
RESTART_SECONDS = 1.0  # a worker that dies at once must not be started in a tight loop


@dataclass
class Worker:
    """A worker process. Its end of `link` is open as long as it lives, and the other way round."""

    process: BaseProcess
    link: Connection
    started: float
    ready: bool = False


def supervise(
    settings: Settings, listener: socket.socket, count: int, *, on_ready: Callable[[], None]
) -> None:
    """Keeps `count` workers serving until SIGTERM or SIGINT. `on_ready` is called once all of them do."""
    token_keys(settings)  # what can't work is told once, not by each worker
    with _metrics_directory() as directory, _stop_signals() as stopping:
        workers = [_start(settings, listener) for _ in range(count)]
        told = False
        while not stopping.is_set():
            wait([worker.process.sentinel for worker in workers], POLL_SECONDS)
            workers = [_kept_alive(worker, settings, listener, directory) for worker in workers]
            if not told and all(_is_ready(worker) for worker in workers):
                told = True
                on_ready()
        listener.close()  # nobody shall wait on it for workers that take no more
        _stop(workers)


def _start(settings: Settings, listener: socket.socket) -> Worker:
    context = multiprocessing.get_context("spawn")
    link, workers_end = context.Pipe()
    process = context.Process(target=_work, args=(settings, listener, workers_end), daemon=True)
    process.start()
    workers_end.close()
    return Worker(process, link, time.monotonic())


def _work(settings: Settings, listener: socket.socket, link: Connection) -> None:
    """The worker's main function. The supervisor's end or its death ends it, Ctrl-C does not by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_supervisor, args=(link,), daemon=True).start()
    run(settings, listener, on_ready=lambda: link.send(True), stop_signals=(signal.SIGTERM,))


def _stop_with_supervisor(link: Connection) -> None:
    try:
        link.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


def _is_ready(worker: Worker) -> bool:
    try:
        worker.ready = worker.ready or (worker.link.poll() and worker.link.recv())
    except (EOFError, OSError):
        worker.ready = False
    return worker.ready


def _kept_alive(worker: Worker, settings: Settings, listener: socket.socket, directory: str) -> Worker:
    """The worker, or its successor when it is dead and not only just started."""
    if worker.process.is_alive() or time.monotonic() - worker.started < RESTART_SECONDS:
        return worker
    click.echo(f"ingest worker ended with status {worker.process.exitcode}: starting another", err=True)
    mark_process_dead(worker.process.pid, directory)  # type: ignore[no-untyped-call]
    worker.link.close()
    return _start(settings, listener)


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS + 5
    for worker in workers:
        worker.process.join(max(0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()
        worker.link.close()


@contextmanager
def _metrics_directory() -> Iterator[str]:
    """Where the workers, which inherit the variable, keep their counts, so that each can tell the sum."""
    with tempfile.TemporaryDirectory(prefix="activity-platform-metrics-") as directory:
        os.environ[SHARED_DIRECTORY] = directory
        try:
            yield directory
        finally:
            del os.environ[SHARED_DIRECTORY]


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    stopping = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
