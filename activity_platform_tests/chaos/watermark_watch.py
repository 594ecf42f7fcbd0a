"""Looks at the fold's watermark all the time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from activity_platform_tests.chaos.site import Site

LOOK_SECONDS = 0.1
LOOK = "SELECT watermark, clock_timestamp() FROM activity_rollup_state WHERE name = 'interaction_edges'"


@dataclass
class WatermarkWatch:
    """What was seen that must never be, in words; and how often it was looked."""

    site: Site
    looks: int = 0
    seen: list[str] = field(default_factory=list)
    _last: datetime | None = None

    def run(self, stop: threading.Event) -> None:
        """Looks until told to stop, over all outages."""
        while not stop.is_set():
            try:
                with psycopg.connect(self.site.settings.database_url, autocommit=True) as connection:
                    while not stop.wait(LOOK_SECONDS):
                        ((watermark, now),) = connection.execute(LOOK)
                        self._judge(watermark, now)
            except psycopg.OperationalError:
                stop.wait(LOOK_SECONDS)

    def _judge(self, watermark: datetime, now: datetime) -> None:
        self.looks += 1
        if self._last is not None and watermark < self._last:
            self.seen.append(f"it went back from {self._last} to {watermark}")
        behind = (now - watermark).total_seconds()
        if behind < self.site.settings.rollup_lag_seconds:
            self.seen.append(f"at {now} it was only {behind:.3f} s behind the clock")
        self._last = watermark
