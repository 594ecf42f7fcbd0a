"""Cross-origin calls from the browser origins that the settings name, error answers included.

Without an origin this middleware is not installed, and OPTIONS is 405 like any other unknown method.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALLOWED_HEADERS = "Authorization, Content-Encoding, Content-Type, Idempotency-Key"
EXPOSED_HEADERS = "Retry-After, WWW-Authenticate"
PREFLIGHT_SECONDS = "600"


class Cors:
    """ASGI middleware. `methods` are those of each path; OPTIONS of a path that is not there stays a 404."""

    def __init__(self, app: ASGIApp, origins: Collection[str], methods: dict[str, str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        allowed = self._allowed_origin(Headers(scope=scope).get("origin", ""))

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if allowed:
                    headers["Access-Control-Allow-Origin"] = allowed
                    headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
            await send(message)

        if scope["method"] == "OPTIONS" and scope["path"] in self._methods:
            await self._options(scope["path"], preflight=bool(allowed))(scope, receive, send_with_origin)
        else:
            await self._app(scope, receive, send_with_origin)

    def _allowed_origin(self, origin: str) -> str:
        if not origin:
            return ""
        return "*" if "*" in self._origins else origin if origin in self._origins else ""

    def _options(self, path: str, *, preflight: bool) -> Response:
        methods = f"{self._methods[path]}, OPTIONS"
        headers = {"Allow": methods}
        if preflight:
            headers |= {
                "Access-Control-Allow-Methods": methods,
                "Access-Control-Allow-Headers": ALLOWED_HEADERS,
                "Access-Control-Max-Age": PREFLIGHT_SECONDS,
            }
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
