"""docs/http-api.md, from the OpenAPI document that ingest serves."""

from __future__ import annotations

from collections.abc import Iterator

from activity_platform.ingest.app import EDGES_PATH, EVENTS_PATH
from activity_platform.ingest.openapi import LARGEST_FLOAT64, WITHOUT_NUL, Schema, document
from activity_platform_tests.docs.markdown import table


def operations() -> str:
    """A section for each path and method."""
    described = document(EVENTS_PATH, EDGES_PATH)
    return "\n\n".join(
        "\n\n".join(_operation(path, method, operation))
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )


def schemas() -> str:
    """A section for each schema that operations name."""
    named: dict[str, Schema] = document(EVENTS_PATH, EDGES_PATH)["components"]["schemas"]
    return "\n\n".join("\n\n".join(_schema(name, schema)) for name, schema in named.items())


def _operation(path: str, method: str, operation: Schema) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield " ".join(filter(None, (operation["summary"], operation.get("description"))))
    yield "Takes a Bearer token." if operation.get("security") else "Takes no token."
    if "parameters" in operation:
        rows = [row for parameter in operation["parameters"] for row in _parameters(parameter)]
        yield table(("Parameter", "In", "Value", ""), rows)
    if "requestBody" in operation:
        ((media_type, content),) = operation["requestBody"]["content"].items()
        yield f"Body: {_value(content['schema'])}, as `{media_type}`."
    yield table(("Status", "", "Body", "Header"), [_answer(*item) for item in operation["responses"].items()])


def _parameters(parameter: Schema) -> Iterator[tuple[str, str, str, str]]:
    schema, about = parameter["schema"], parameter.get("description", "")
    # An object whose properties stand in the query as parameters of their own.
    for name, inner in schema.get("properties", {parameter["name"]: schema}).items():
        yield f"`{name}`", parameter["in"], _value(inner), about


def _answer(status: str, answer: Schema) -> tuple[str, str, str, str]:
    ((media_type, content),) = answer["content"].items()
    headers = ", ".join(f"`{name}`" for name in answer.get("headers", {}))
    return status, answer["description"], f"{_value(content['schema'])}, `{media_type}`", headers


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield schema["description"]
    if "properties" not in schema:
        yield f"One of: {_value(schema)}."
        return
    required = schema.get("required", ())
    yield table(
        ("Field", "Value", "Required", ""),
        [
            (f"`{field}`", _value(inner), "yes" if field in required else "", inner.get("description", ""))
            for field, inner in schema["properties"].items()
        ],
    )


def _value(schema: Schema) -> str:
    """A schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return "; or ".join(_value(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    between = ", " if schema["type"] == "array" else " "
    return between.join(filter(None, (_kind(schema), ", ".join(_bounds(schema)))))


def _kind(schema: Schema) -> str:
    kind = schema["type"]
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"array of {_value(schema['items'])}"
    if kind == "object" and "properties" in schema:
        fields = ", ".join(f"`{name}`: {_value(inner)}" for name, inner in schema["properties"].items())
        return f"object of {fields}"
    return str(schema.get("format", kind))


#: The keywords of the least and the most, and what they count.
_RANGES = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minimum", "maximum", ""),
)


def _bounds(schema: Schema) -> Iterator[str]:
    for least, most, unit in _RANGES:
        if schema.get(most) not in (None, LARGEST_FLOAT64):
            yield _range(schema.get(least), schema[most], unit)
        elif schema.get(least) not in (None, -LARGEST_FLOAT64):
            yield f"at least {schema[least]}{unit}"
    if "default" in schema:
        yield f"default {schema['default']}"
    if schema.get("pattern") == WITHOUT_NUL:
        yield "without NUL"


def _range(least: float | None, most: float, unit: str) -> str:
    return f"{least} to {most}{unit}" if least else f"up to {most}{unit}"
