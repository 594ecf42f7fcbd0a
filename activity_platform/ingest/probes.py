"""`/healthz`, `/readyz` and `/metrics`: what an orchestrator and Prometheus ask."""

from __future__ import annotations

from http import HTTPStatus

import anyio.to_thread
import msgspec
import psycopg
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from activity_platform import health, migrations
from activity_platform.gateways import postgres
from activity_platform.health import Watch
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.problems import unavailable
from activity_platform.ingest.reader import Reader


class Probes:
    def __init__(self, reader: Reader, metrics: Metrics, watch: Watch) -> None:
        self._reader = reader
        self._metrics = metrics
        self._watch = watch

    async def health(self, _: Request) -> Response:
        """The process answers; nothing else is looked at."""
        return _ok()

    async def readiness(self, _: Request) -> Response:
        """The database answers and has every table that this release writes."""
        try:
            migrated = await anyio.to_thread.run_sync(self._is_migrated)
        except (postgres.DatabaseAway, psycopg.Error):
            raise unavailable("The database is away.", "database_away") from None
        if not migrated:
            raise unavailable(
                "The database is not migrated: run `activity-platform migrate`.", "not_migrated"
            )
        return _ok()

    async def metrics(self, _: Request) -> Response:
        """What the app counts, and how the platform behind it is."""
        readings = await anyio.to_thread.run_sync(self._watch.readings)
        text = self._metrics.exposition() + health.exposition(readings)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _is_migrated(self) -> bool:
        # Revisions are numbers of equal length. A newer one is fine: migrations only add at first.
        return (self._reader.read(migrations.current_revision) or "") >= migrations.head_revision()


def _ok() -> Response:
    return Response(msgspec.json.encode({"status": "ok"}), HTTPStatus.OK, media_type="application/json")
