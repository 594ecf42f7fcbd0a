"""The HTTP app: routes, and what is open while it runs.

A request passes `Observed` (access log and metrics), CORS if configured, routing (404, 405), then
authentication (401), and only then an endpoint that may read its body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from activity_platform.ingest import problems
from activity_platform.ingest.auth import BearerBackend, TokenVerifier
from activity_platform.ingest.edges_endpoint import EdgesEndpoint
from activity_platform.ingest.events_endpoint import EventsEndpoint
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.probes import Probes
from activity_platform.ingest.reader import Reader
from activity_platform.ingest.writer import Writer
from activity_platform.settings import Settings

EVENTS_PATH = "/api/v1/activity/events"
EDGES_PATH = "/api/v1/activity/edges"


def create_app(settings: Settings) -> Starlette:
    """The app. It starts while the database is away, and then answers 503.

    Raises `UsageError` when the settings hold no key that tokens can be checked with.
    """
    metrics = Metrics()
    reader = Reader(settings.database_url)
    writer = Writer(settings.database_url, metrics)
    probes = Probes(reader, metrics)
    authenticated = [Middleware(AuthenticationMiddleware, backend=BearerBackend(TokenVerifier(settings)))]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        writer.start()
        try:
            yield
        finally:
            await writer.stop()
            reader.close()

    app = Starlette(
        routes=[
            Route(
                EVENTS_PATH, EventsEndpoint(writer, metrics).post, methods=["POST"], middleware=authenticated
            ),
            Route(
                EDGES_PATH,
                EdgesEndpoint(reader, settings.edge_half_life_days).get,
                methods=["GET"],
                middleware=authenticated,
            ),
            Route("/healthz", probes.health, methods=["GET"]),
            Route("/readyz", probes.readiness, methods=["GET"]),
            Route("/metrics", probes.metrics, methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: problems.answer,
            ClientDisconnect: problems.answer,
            Exception: problems.answer,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a path with a slash too much is 404, as any other
    return app
