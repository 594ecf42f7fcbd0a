"""The HTTP app: routes, and what is open while it runs.

A request passes `Observed` (access log and metrics), CORS if configured, routing (404, 405), then
authentication (401), and only then an endpoint that may read its body.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from activity_platform.health import Watch, collect
from activity_platform.ingest import openapi, problems
from activity_platform.ingest.access_log import AccessLog, Observed
from activity_platform.ingest.auth import BearerBackend, TokenVerifier
from activity_platform.ingest.cors import Cors
from activity_platform.ingest.edges_endpoint import EdgesEndpoint
from activity_platform.ingest.events_endpoint import EventsEndpoint
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.probes import Probes
from activity_platform.ingest.reader import Reader
from activity_platform.ingest.unread_bodies import EndUnreadBodies
from activity_platform.ingest.writer import Writer
from activity_platform.settings import Settings

EVENTS_PATH = "/api/v1/activity/events"
EDGES_PATH = "/api/v1/activity/edges"


def create_app(settings: Settings) -> Starlette:
    """The app. It starts while the database is away, and then answers 503.

    Raises `UsageError` when the settings hold no key that tokens can be checked with.
    """
    metrics = Metrics()
    log = AccessLog(sys.stderr)
    reader = Reader(settings.database_url)
    writer = Writer(settings.database_url, metrics)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        log.start()
        writer.start()
        try:
            yield
        finally:
            await writer.stop()
            reader.close()
            log.stop()

    routes = _routes(settings, writer, reader, metrics)
    methods = {route.path: ", ".join(sorted(route.methods or ())) for route in routes}
    observed = Middleware(Observed, log=log, metrics=metrics, paths=methods.keys())
    cors = Middleware(Cors, origins=settings.cors_origins, methods=methods)
    app = Starlette(
        routes=routes,
        middleware=[observed, *([cors] if settings.cors_origins else []), Middleware(EndUnreadBodies)],
        exception_handlers=dict.fromkeys([HTTPException, ClientDisconnect, Exception], problems.answer),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a path with a slash too much is 404, as any other
    return app


def _routes(settings: Settings, writer: Writer, reader: Reader, metrics: Metrics) -> list[Route]:
    authenticated = [Middleware(AuthenticationMiddleware, backend=BearerBackend(TokenVerifier(settings)))]
    events = EventsEndpoint(writer, metrics)
    edges = EdgesEndpoint(reader, settings.edge_half_life_days)
    probes = Probes(reader, metrics, Watch(lambda: collect(settings)))
    return [
        Route(EVENTS_PATH, events.post, methods=["POST"], middleware=authenticated),
        Route(EDGES_PATH, edges.get, methods=["GET"], middleware=authenticated),
        Route("/healthz", probes.health, methods=["GET"]),
        Route("/readyz", probes.readiness, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/openapi.json", _description, methods=["GET"]),
    ]


async def _description(_: Request) -> Response:
    return JSONResponse(openapi.document(EVENTS_PATH, EDGES_PATH))
