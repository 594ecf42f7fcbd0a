"""The demo: real traffic through every path of the running platform, and a table of what came out.

Each path sends, waits until Dagster's own schedules and sensors have done their work, and compares what can
be read back with what was sent. A path that does not deliver in time fails the demo.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from activity_platform.failures import PlatformError
from activity_platform.local.demo_activity import ActivityRoute
from activity_platform.local.demo_audience import AudienceRoute
from activity_platform.local.demo_last_activity import LastActivityRoute
from activity_platform.settings import Settings

PATIENCE_SECONDS = 300
LOOK_SECONDS = 0.5


class Route(Protocol):
    """One way through the platform, from a producer to what a consumer reads."""

    name: str
    steps: int

    def send(self, advance: Callable[[], None]) -> str:
        """Sends everything, calling `advance` after each of `steps`; returns what was accepted."""

    def awaited(self) -> str | None:
        """What has yet to happen before the result can be read; None when it has."""

    def verify(self) -> str:
        """Reads the result back and says what came out. Raises `PlatformError` when it is wrong."""

    def link(self) -> str:
        """Where in the UI it can be seen."""


@dataclass(frozen=True)
class Delivery:
    """A line of the summary."""

    route: str
    sent: str
    came_out: str
    link: str


class Demo:
    """The routes over one running platform."""

    def __init__(self, settings: Settings, api_url: str, ui_url: str, console: Console) -> None:
        self._api_url = api_url
        self._ui_url = ui_url
        self._console = console
        self._activity = ActivityRoute(settings, api_url, ui_url)
        self._last_activity = LastActivityRoute(settings, ui_url)
        self._audience = AudienceRoute(settings, ui_url)

    @property
    def _routes(self) -> Sequence[Route]:
        return (self._activity, self._last_activity, self._audience)

    def run(self, look: Callable[[], None]) -> None:
        """Sends, waits, compares and prints. `look` is called while waiting, to raise when a server ended."""
        sent = {route.name: self._send(route) for route in self._routes}
        deliveries = []
        for route in self._routes:
            self._wait(route, look)
            deliveries.append(Delivery(route.name, sent[route.name], route.verify(), route.link()))
        self._summarize(deliveries)

    def _send(self, route: Route) -> str:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(f"sending {route.name}", total=route.steps)
            accepted = route.send(lambda: progress.advance(task))
        self._console.print(f"{route.name}: {accepted}")
        return accepted

    def _wait(self, route: Route, look: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._console.status("") as status:
            while (awaited := route.awaited()) is not None:
                look()
                if time.monotonic() > deadline:
                    raise PlatformError(f"{route.name}: waited {PATIENCE_SECONDS} s for {awaited}")
                status.update(f"{route.name}: waiting for {awaited}")
                time.sleep(LOOK_SECONDS)

    def _summarize(self, deliveries: Sequence[Delivery]) -> None:
        table = Table("path", "sent", "came out", title="every path delivered", title_justify="left")
        for delivery in deliveries:
            table.add_row(delivery.route, delivery.sent, delivery.came_out)
        self._console.print(table)
        self._console.print(
            f"UI   {self._ui_url}", *(f"     {delivery.link}" for delivery in deliveries), sep="\n"
        )
        self._console.print(f"API  {self._api_url}/openapi.json")

    def say_what_to_try(self) -> None:
        """Prints lines that work in another terminal while the platform runs."""
        self._console.print("\nTry it in a second terminal:")
        for line in self._lines_to_paste():
            self._console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)

    def _lines_to_paste(self) -> tuple[str, str, str]:
        program = shlex.quote(str(Path(sys.argv[0]).absolute()))
        python = shlex.quote(sys.executable)
        event = '{"events":[{"verb":"save","object_type":"event","object_id":"event-1"}]}'
        return (
            f"curl -sS {self._api_url}/api/v1/activity/events"
            f' -H "Authorization: Bearer $({program} token you)"'
            f" -H 'Content-Type: application/json' -d '{event}'",
            f"{program} edges {self._activity.busiest_user}",
            f"{python} -m webbrowser {self._activity.link()}",
        )
