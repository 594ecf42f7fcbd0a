"""Every refusal as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from activity_platform.activity.events import Fault

RETRY_AFTER_SECONDS = 1

#: Where the reason of a refusal waits in the scope for log and metrics.
REFUSAL = "activity_platform.refusal"

DETAILS: dict[int, str] = {
    HTTPStatus.NOT_FOUND: "There is nothing at this path.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This path takes the methods that the header Allow names.",
}


class Problem(HTTPException):
    """A request ends with this status. `detail` is one sentence for the client's developer.

    `close` ends the connection behind the answer.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        faults: Sequence[Fault] = (),
        reason: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(status, detail, {**(headers or {}), **({"Connection": "close"} if close else {})})
        self.faults = faults
        self.reason = reason or status.name.lower()


def unavailable(detail: str, reason: str) -> Problem:
    """503: the same request may succeed in a moment."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        detail,
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        reason=reason,
    )


def problem_body(status: int, detail: str, faults: Sequence[Fault] = ()) -> bytes:
    """The JSON of a problem. `errors` names what is wrong with single events."""
    title = HTTPStatus(status).phrase
    content: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if faults:
        content["errors"] = [
            {"index": fault.index, "field": fault.field, "message": fault.message} for fault in faults
        ]
    return msgspec.json.encode(content)


async def answer(request: Request, error: Exception) -> Response:
    """Starlette's handler of every exception: its own (404, 405), ours, and what should never happen."""
    if isinstance(error, ClientDisconnect):
        request.scope[REFUSAL] = "disconnected"
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
    if not isinstance(error, HTTPException):
        return response(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed.")
    if not isinstance(error, Problem):
        error = Problem(
            HTTPStatus(error.status_code), DETAILS.get(error.status_code, error.detail), headers=error.headers
        )
    request.scope[REFUSAL] = error.reason
    return response(error.status_code, error.detail, error.headers, error.faults)


def response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, faults: Sequence[Fault] = ()
) -> Response:
    return Response(
        problem_body(status, detail, faults), status, headers, media_type="application/problem+json"
    )
