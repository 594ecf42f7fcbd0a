"""`GET /api/v1/activity/edges`: the caller's edges, strongest first, for the ranker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import Response

from activity_platform.activity.edges import DEFAULT_LIMIT, MOST, MOST_TARGETS, Edge, list_edges
from activity_platform.activity.events import MAX_OBJECT_ID_CHARACTERS, Fault
from activity_platform.gateways import postgres
from activity_platform.ingest.auth import EDGES_READ, MAX_SUBJECT_CHARACTERS
from activity_platform.ingest.problems import Problem, unavailable
from activity_platform.ingest.reader import Reader

CONCURRENT_READS = 8  # a process; each holds a connection


@dataclass(frozen=True)
class Query:
    """What is asked for. `targets` is a target type and the ids of it."""

    actor_id: str | None
    edge_type: str | None
    targets: tuple[str, Sequence[str]] | None
    limit: int


class EdgesEndpoint:
    def __init__(self, reader: Reader, half_life_days: float) -> None:
        self._reader = reader
        self._half_life_days = half_life_days
        self._threads = CapacityLimiter(CONCURRENT_READS)

    async def get(self, request: Request) -> Response:
        parameters = _parameters(request.scope["query_string"])
        if "actor_id" in parameters and EDGES_READ not in request.auth.scopes:
            raise Problem(
                HTTPStatus.FORBIDDEN, f"Reading the edges of an actor takes the scope {EDGES_READ}."
            )
        query = parse_query(parameters)
        try:
            edges = await anyio.to_thread.run_sync(
                self._read, query.actor_id or request.user.actor_id, query, limiter=self._threads
            )
        except postgres.DatabaseAway:
            raise unavailable("The database is away.", "database_away") from None
        return Response(msgspec.json.encode({"edges": edges}), media_type="application/json")

    def _read(self, actor_id: str, query: Query) -> list[Edge]:
        return self._reader.read(
            lambda connection: list_edges(
                connection,
                actor_id,
                now=None,
                half_life_days=self._half_life_days,
                edge_type=query.edge_type,
                targets=query.targets,
                limit=query.limit,
            )
        )


def parse_query(parameters: Mapping[str, list[str]]) -> Query:
    """Raises `Problem` (400) with the name of the first parameter that is wrong. Unknown ones are ignored."""
    edge_type = _single(parameters, "edge_type")
    target_type = _single(parameters, "target_type")
    target_ids = parameters.get("target_id", [])
    actor_id = _single(parameters, "actor_id")
    if actor_id is not None and not _is_name(actor_id, MAX_SUBJECT_CHARACTERS):
        raise _bad("actor_id", f"is not a text of 1 to {MAX_SUBJECT_CHARACTERS} characters without NUL")
    if (target_type is None) != (not target_ids):
        raise _bad("target_type", "and target_id are asked for together")
    if len(target_ids) > MOST_TARGETS:
        raise _bad("target_id", f"is given more than {MOST_TARGETS} times")
    if not all(_is_name(target_id, MAX_OBJECT_ID_CHARACTERS) for target_id in target_ids):
        raise _bad("target_id", f"is not a text of 1 to {MAX_OBJECT_ID_CHARACTERS} characters without NUL")
    return Query(
        actor_id,
        edge_type,
        None if target_type is None else (target_type, target_ids),
        _limit(_single(parameters, "limit")),
    )


def _parameters(query_string: bytes) -> dict[str, list[str]]:
    """Names and values of the query string, percent-decoded as UTF-8."""
    try:
        return parse_qs(query_string.decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, "The query string is not UTF-8.") from None


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not re.fullmatch("[1-9][0-9]{0,2}", text) or int(text) > MOST:
        raise _bad("limit", f"is not a whole number from 1 to {MOST}")
    return int(text)


def _single(parameters: Mapping[str, list[str]], name: str) -> str | None:
    values = parameters.get(name, [])
    if len(values) > 1:
        raise _bad(name, "is given more than once")
    return values[0] if values else None


def _is_name(text: str, most: int) -> bool:
    return 1 <= len(text) <= most and "\0" not in text


def _bad(name: str, message: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, f"{name} {message}.", faults=[Fault(None, name, message)])
