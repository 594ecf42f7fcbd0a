"""`POST /api/v1/activity/events`: takes a batch of events, all or none of it."""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from activity_platform.activity import event_log, events
from activity_platform.failures import TransientFailure
from activity_platform.ingest.metrics import Metrics
from activity_platform.ingest.problems import Problem, unavailable
from activity_platform.ingest.request_body import read_json_body
from activity_platform.ingest.writer import EventsRefused, QueueFull, Unconfirmed, Writer

MAX_KEY_CHARACTERS = 128
KEY = re.compile(f"[ -~]{{1,{MAX_KEY_CHARACTERS}}}")


class EventsEndpoint:
    def __init__(self, writer: Writer, metrics: Metrics) -> None:
        self._writer = writer
        self._metrics = metrics

    async def post(self, request: Request) -> Response:
        try:
            self._writer.check_room()  # before a body is read that could not be taken
            body = await read_json_body(request)
            key = idempotency_key(request)
            batch = events.parse(body)
            # Without a row and without a key there is nothing that the database could have to say.
            accepted = await self._write(request, batch, key) if batch or key is not None else 0
        except events.InvalidEvents as invalid:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "The body is refused; no event was stored.", faults=invalid.faults
            ) from None
        except EventsRefused:
            raise Problem(HTTPStatus.BAD_REQUEST, "The database can't hold these events.") from None
        except QueueFull:
            raise unavailable("More is in flight than can be taken at once.", "queue_full") from None
        except Unconfirmed:
            raise unavailable(
                "The database went away before it confirmed the events: they may be stored.", "unconfirmed"
            ) from None
        except TransientFailure:
            raise unavailable("The database is away; no event was stored.", "database_away") from None
        self._metrics.accepted(accepted)
        return Response(
            msgspec.json.encode({"accepted": accepted}), HTTPStatus.ACCEPTED, media_type="application/json"
        )

    async def _write(self, request: Request, batch: events.EventBatch, key: str | None) -> int:
        return await self._writer.write(event_log.submission(request.user.actor_id, batch, key))


def idempotency_key(request: Request) -> str | None:
    """The client's key: 1 to 128 printable ASCII characters. Raises `Problem` (400)."""
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not KEY.fullmatch(keys[0]):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"Idempotency-Key is not one text of 1 to {MAX_KEY_CHARACTERS} printable ASCII characters.",
        )
    return keys[0]
