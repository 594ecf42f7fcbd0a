"""`GET /openapi.json`: the API described in OpenAPI 3.1. The tests hold the app to it."""

from __future__ import annotations

from typing import Any

from activity_platform import __version__
from activity_platform.activity.edges import DEFAULT_LIMIT, MOST, MOST_TARGETS
from activity_platform.activity.events import (
    MAX_CONTEXT_BYTES,
    MAX_CONTEXT_DEPTH,
    MAX_EVENTS,
    MAX_OBJECT_ID_CHARACTERS,
    MAX_SURFACE_CHARACTERS,
)
from activity_platform.activity.vocabulary import EdgeType, ObjectType, Verb
from activity_platform.ingest.auth import EDGES_READ, MAX_SUBJECT_CHARACTERS
from activity_platform.ingest.events_endpoint import MAX_KEY_CHARACTERS
from activity_platform.ingest.request_body import MAX_BODY_BYTES

Schema = dict[str, Any]

WITHOUT_NUL = r"^[^\u0000]*$"
LARGEST_FLOAT64 = 1.7976931348623157e308

ACCEPTED: Schema = {
    "type": "object",
    "properties": {"accepted": {"type": "integer", "minimum": 0, "maximum": MAX_EVENTS}},
    "required": ["accepted"],
}
STATUS: Schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}


def document(events_path: str, edges_path: str) -> Schema:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Activity Platform",
            "version": __version__,
            "description": "Takes interaction events, and tells the affinity edges folded from them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            events_path: {"post": _post_events()},
            edges_path: {"get": _list_edges()},
            "/healthz": {"get": _probe("health", "Whether the process answers.", {})},
            "/readyz": {
                "get": _probe("readiness", "Whether the database is there and migrated.", _problems("503"))
            },
            "/metrics": {"get": _metrics()},
            "/openapi.json": {"get": _this_document()},
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "`sub` is the user; `exp` is required.",
                }
            },
        },
    }


def _post_events() -> Schema:
    return {
        "operationId": "postEvents",
        "summary": "Take a batch of events: all of them, or none.",
        "description": (
            "202 is sent once the rows are durable. The user is the token's `sub`, the time the server's; "
            "both are ignored in the body, as are unknown keys. Without an Idempotency-Key a repeated "
            f"request adds its events again. The body is at most {MAX_BODY_BYTES} bytes, inflated too "
            "(Content-Encoding: gzip)."
        ),
        "security": [{"token": []}],
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A repeat within 24 hours is answered as the first request and adds nothing.",
                # RFC 9110 section 5.5: blanks around a field's value are no part of it.
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_KEY_CHARACTERS,
                    "pattern": r"^[!-~]([ -~]*[!-~])?$",
                },
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Events"}}},
        },
        "responses": {
            "202": _answer("All events are stored.", ACCEPTED),
            **_problems("400", "401", "408", "413", "415", "503"),
        },
    }


def _list_edges() -> Schema:
    name = {"type": "string", "minLength": 1, "pattern": WITHOUT_NUL}
    return {
        "operationId": "listEdges",
        "summary": "The edges of an actor, strongest first.",
        "security": [{"token": []}],
        "parameters": [
            _query("edge_type", {"type": "string"}, f"One of {', '.join(EdgeType)}; others have no edges."),
            _query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT},
                "How many.",
            ),
            _query(
                "actor_id",
                name | {"maxLength": MAX_SUBJECT_CHARACTERS},
                f"Another actor than the caller; takes the scope `{EDGES_READ}`.",
            ),
            # One parameter to OpenAPI, so that it can say that the two come together: `form` and `explode`
            # write an object's properties as parameters of their own.
            _query(
                "targets",
                {
                    "type": "object",
                    "properties": {
                        "target_type": {"type": "string"},
                        "target_id": {
                            "type": "array",
                            "items": name | {"maxLength": MAX_OBJECT_ID_CHARACTERS},
                            "minItems": 1,
                            "maxItems": MOST_TARGETS,
                        },
                    },
                    "required": ["target_type", "target_id"],
                },
                "Asks for the edges to these targets only.",
            )
            | {"style": "form", "explode": True},
        ],
        "responses": {
            "200": _answer("The edges.", {"$ref": "#/components/schemas/Edges"}),
            **_problems("400", "401", "403", "503"),
        },
    }


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _probe(name: str, summary: str, problems: Schema) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": _answer("Yes.", STATUS), **problems},
    }


def _metrics() -> Schema:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "operationId": "metrics",
        "summary": "Prometheus metrics.",
        "responses": {"200": {"description": "Counts since the start.", "content": content}},
    }


def _this_document() -> Schema:
    return {
        "operationId": "openapi",
        "summary": "This document.",
        "responses": {"200": _answer("OpenAPI 3.1.", {"type": "object"})},
    }


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


PROBLEM_DESCRIPTIONS = {
    "400": "The request is malformed; `errors` names what is wrong with which event.",
    "401": "There is no valid token.",
    "403": "The token's scope does not cover this.",
    "408": "The body stalled.",
    "413": "The body is too large.",
    "415": "The body is not JSON in UTF-8, or its encoding is not gzip.",
    "503": "The database is away or too much is in flight; nothing was stored.",
}
PROBLEM_HEADERS = {"401": "WWW-Authenticate", "503": "Retry-After"}


def _problems(*statuses: str) -> Schema:
    return {status: _problem(status) for status in statuses}


def _problem(status: str) -> Schema:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    response: Schema = {"description": PROBLEM_DESCRIPTIONS[status], "content": content}
    if header := PROBLEM_HEADERS.get(status):
        response["headers"] = {header: {"required": True, "schema": {"type": "string"}}}
    return response


def _schemas() -> Schema:
    return {
        "Events": {
            "type": "object",
            "properties": {
                "events": {
                    "type": "array",
                    "maxItems": MAX_EVENTS,
                    "items": {"$ref": "#/components/schemas/Event"},
                }
            },
            "required": ["events"],
        },
        "Event": {
            "type": "object",
            "properties": {
                "verb": {"enum": [str(verb) for verb in Verb]},
                "object_type": {"enum": [str(object_type) for object_type in ObjectType]},
                "object_id": _text(MAX_OBJECT_ID_CHARACTERS, least=1),
                "surface": {"anyOf": [_text(MAX_SURFACE_CHARACTERS), {"type": "null"}]},
                "context": {
                    "anyOf": [_object(), {"type": "null"}],
                    "description": (
                        f"At most {MAX_CONTEXT_BYTES} bytes as compact JSON, and {MAX_CONTEXT_DEPTH} levels "
                        "deep, itself included."
                    ),
                },
            },
            "required": ["verb", "object_type", "object_id"],
        },
        "Json": {
            "anyOf": [
                {"type": ["null", "boolean"]},
                {"type": "number", "minimum": -LARGEST_FLOAT64, "maximum": LARGEST_FLOAT64},
                {"type": "string", "pattern": WITHOUT_NUL},
                {"type": "array", "items": {"$ref": "#/components/schemas/Json"}},
                _object(),
            ]
        },
        "Edges": {
            "type": "object",
            "properties": {
                "edges": {
                    "type": "array",
                    "maxItems": MOST,
                    "items": {"$ref": "#/components/schemas/Edge"},
                }
            },
            "required": ["edges"],
        },
        "Edge": _edge(),
        "Problem": _problem_schema(),
    }


def _text(most: int, *, least: int = 0) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most, "pattern": WITHOUT_NUL}


def _object() -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": WITHOUT_NUL},
        "additionalProperties": {"$ref": "#/components/schemas/Json"},
    }


def _edge() -> Schema:
    properties: Schema = {
        "edge_type": {"type": "string"},
        "target_type": {"type": "string"},
        "target_id": {"type": "string"},
        "strength": {"type": "number", "minimum": 0, "description": "The weight, decayed by age."},
        "weight": {"type": "number", "minimum": 0},
        "event_count": {"type": "integer", "minimum": 0},
        "first_at": {"type": "string", "format": "date-time"},
        "last_at": {"type": "string", "format": "date-time"},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _problem_schema() -> Schema:
    fault = {
        "type": "object",
        "properties": {
            "index": {
                "type": ["integer", "null"],
                "description": "The event's place from 0; null for the body.",
            },
            "field": {"type": ["string", "null"]},
            "message": {"type": "string"},
        },
        "required": ["index", "field", "message"],
    }
    return {
        "type": "object",
        "description": "RFC 9457.",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {"type": "array", "minItems": 1, "items": fault},
        },
        "required": ["type", "title", "status", "detail"],
    }
