"""The commands `services`, `dev` and `demo`: start, say where everything is, run until told to stop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from activity_platform.activity.maintenance import maintain_log
from activity_platform.failures import PlatformError
from activity_platform.local import registry
from activity_platform.local.demo import Demo
from activity_platform.local.programs import Programs
from activity_platform.local.server import Server
from activity_platform.local.services import Stack
from activity_platform.local.terminal import labelled_logs, stopping_on_signals
from activity_platform.settings import Settings

LOOK_SECONDS = 0.5


def run_services(data_directory: Path, environment_file: Path | None) -> None:
    """Runs the stack until a signal; `environment_file` holds its environment while it is up."""
    console = Console(stderr=True)
    if environment_file is not None:
        environment_file.unlink(missing_ok=True)  # an old one would mislead whoever waits for it
    with (
        stopping_on_signals(),
        _migrated_stack(data_directory) as stack,
        registry.announced(stack.directory, stack.environment, also=environment_file),
    ):
        _say_addresses(console, "services are up; Ctrl-C stops them", _service_rows(stack))
        _watch(stack.servers)
    console.print("services are stopped")


def run_dev(data_directory: Path) -> None:
    """Runs the whole platform until a signal."""
    console = Console(stderr=True)
    with stopping_on_signals(), _platform(data_directory, console) as (stack, programs):
        _say_addresses(console, "everything is up; Ctrl-C stops it", _rows(stack, programs))
        _watch(stack.servers + programs.servers)
    console.print("everything is stopped")


def run_demo(data_directory: Path, *, then_exit: bool) -> None:
    """Runs the whole platform, sends traffic through every path and shows what came out.

    Raises `PlatformError` when a path did not deliver. `then_exit` ends it there, else it runs on.
    """
    console = Console(stderr=True)
    delivered = False
    with stopping_on_signals(), _platform(data_directory, console) as (stack, programs):
        _say_addresses(console, "everything is up", _rows(stack, programs))
        os.environ.update(programs.environment)  # the AWS client looks there
        demo = Demo(Settings.load(programs.environment), programs.api_url, programs.ui_url, console)
        demo.run(look=lambda: _look(stack.servers + programs.servers))
        delivered = True
        if not then_exit:
            demo.say_what_to_try()
            console.print("\nCtrl-C stops everything.")
            _watch(stack.servers + programs.servers)
    console.print("everything is stopped")
    if not delivered:
        raise PlatformError("stopped before every path had delivered")


@contextmanager
def _migrated_stack(data_directory: Path) -> Iterator[Stack]:
    with Stack(data_directory, overrides=os.environ) as stack:
        maintain_log(Settings.load(stack.environment))
        yield stack


@contextmanager
def _platform(data_directory: Path, console: Console) -> Iterator[tuple[Stack, Programs]]:
    console.print(f"starting on {data_directory} …")
    with _migrated_stack(data_directory) as stack:
        programs = Programs(stack.directory, stack.environment)
        with (
            labelled_logs(programs.servers, console),
            programs,
            registry.announced(stack.directory, programs.environment),
        ):
            yield stack, programs


def _watch(servers: Sequence[Server]) -> None:
    while True:
        _look(servers)
        time.sleep(LOOK_SECONDS)


def _look(servers: Sequence[Server]) -> None:
    for server in servers:
        server.raise_if_ended()


def _service_rows(stack: Stack) -> list[tuple[str, str]]:
    return [(server.name, f"127.0.0.1:{server.port}") for server in stack.servers]


def _rows(stack: Stack, programs: Programs) -> list[tuple[str, str]]:
    return [("UI", programs.ui_url), ("API", programs.api_url), *_service_rows(stack)]


def _say_addresses(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, show_header=False, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
