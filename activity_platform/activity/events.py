"""A request's body of events: parsed once, and what is wrong with it named by index and field.

The body is decoded into `Event` in one go, and the contexts are encoded again, compactly: that text is
measured, checked and stored, so that what was validated is what is kept. Only a body that fails is looked at
a second time, an event at a time through the same types, to name every faulty event.

Numbers are IEEE float64, as RFC 8259 section 6 expects of interoperable JSON, and integers of its range are
kept digit for digit. Of a name that comes twice in one object the last counts, as in PostgreSQL's jsonb.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from activity_platform.activity.vocabulary import ObjectType, Verb

MAX_EVENTS = 100
MAX_OBJECT_ID_CHARACTERS = 256
MAX_SURFACE_CHARACTERS = 64
MAX_CONTEXT_BYTES = 8 * 1024
MAX_CONTEXT_DEPTH = 32

#: The shortest integer that may lie beyond float64 (1.8e308) has this many digits.
LONG_INTEGER_DIGITS = 309

#: A message may quote the value that is refused, and that may be long.
MAX_MESSAGE_CHARACTERS = 200

BYTE_ORDER_MARK = "\ufeff"


class Event(msgspec.Struct, frozen=True, gc=False):  # a decoded body has no cycle to collect
    """One thing that a user did. Lengths are in characters (code points)."""

    verb: Verb
    object_type: ObjectType
    object_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_OBJECT_ID_CHARACTERS)]
    surface: Annotated[str, msgspec.Meta(max_length=MAX_SURFACE_CHARACTERS)] | None = None
    context: dict[str, Any] | None = None


@dataclass(frozen=True)
class EventBatch:
    """The events of one request, and their contexts as compact JSON (None where there is none).

    `escaped` is False when no text of the batch holds a backslash or a control character.
    """

    events: Sequence[Event]
    contexts: Sequence[str | None]
    escaped: bool

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True)
class Fault:
    """Why a body is refused. `index` is the event's place from 0, None for a fault of the body as a whole."""

    index: int | None
    field: str | None
    message: str


class InvalidEvents(ValueError):
    """The body is refused as a whole; `faults` holds at least one fault of every faulty event."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults[0].message)
        self.faults = tuple(faults)


class _Body(msgspec.Struct, frozen=True):
    events: list[Event]


class _Parts(msgspec.Struct, frozen=True):
    events: list[msgspec.Raw]


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_decode_event = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode

_LONG_INTEGER = re.compile(rf"[0-9]{{{LONG_INTEGER_DIGITS}}}")


def parse(body: bytes) -> EventBatch:
    """The events of a JSON body `{"events": [...]}`. Raises `InvalidEvents`."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidEvents([Fault(None, None, "the body is not UTF-8")]) from error
    text = text.removeprefix(BYTE_ORDER_MARK)  # RFC 8259 section 8.1 lets a parser ignore it
    try:
        events = _decode_body(text).events
    except (ValueError, RecursionError) as error:
        raise InvalidEvents(_diagnose(text, error)) from None
    if len(events) > MAX_EVENTS:
        raise InvalidEvents([_too_many(len(events))])
    escaped = "\\" in text
    contexts = [_compact(event) for event in events]
    faults = [
        Fault(index, *fault)
        for index, (event, context) in enumerate(zip(events, contexts, strict=True))
        if (escaped or not _is_harmless(context)) and (fault := _value_fault(event, context))
    ]
    if faults:
        raise InvalidEvents(faults)
    return EventBatch(events, contexts, escaped)


def _compact(event: Event) -> str | None:
    return None if event.context is None else _encode(event.context).decode()


def _is_harmless(context: str | None) -> bool:
    """Whether the text alone shows that the context has no fault but NUL. It does so for nearly every one."""
    return context is None or (
        len(context) < LONG_INTEGER_DIGITS and context.count("{") + context.count("[") <= MAX_CONTEXT_DEPTH
    )


def _value_fault(event: Event, context: str | None) -> tuple[str, str] | None:
    """Field and message of what the types can't say."""
    if field := _field_with_nul(event):
        return field, "holds the character NUL or half of a surrogate pair"
    if context is None:
        return None
    if len(context.encode()) > MAX_CONTEXT_BYTES:
        return "context", f"is longer than {MAX_CONTEXT_BYTES} bytes as compact JSON"
    if _depth(event.context) > MAX_CONTEXT_DEPTH:
        return "context", f"is nested deeper than {MAX_CONTEXT_DEPTH} levels"
    if _LONG_INTEGER.search(context) and _beyond_float64(event.context):
        return "context", "holds a number beyond float64"
    return None


def _field_with_nul(event: Event) -> str | None:
    if "\0" in event.object_id:
        return "object_id"
    if event.surface is not None and "\0" in event.surface:
        return "surface"
    if event.context is not None and any("\0" in text for text in _texts(event.context)):
        return "context"
    return None


def _texts(value: Any) -> Iterator[str]:
    for item in _values(value):
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item


def _beyond_float64(value: Any) -> bool:
    try:
        for item in _values(value):
            if isinstance(item, int):
                float(item)
    except OverflowError:
        return True
    return False


def _values(value: Any) -> list[Any]:
    """The value and everything in it. The list is its own queue, so that no depth is too much."""
    found = [value]
    for item in found:
        found.extend(_inner(item))
    return found


def _depth(value: Any) -> int:
    """How many objects and arrays lie inside each other; 0 for a scalar."""
    depth = 0
    level = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in _inner(item)]
    return depth


def _inner(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


# The second look, at a body that was refused.

#: Nesting that the decoder manages on any stack. What lies deeper is cut away before the second look.
DIAGNOSED_DEPTH = 4 * MAX_CONTEXT_DEPTH

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]|[^"\[\]{}]+', re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_PLACE = re.compile(r" - at `\$\.?(?P<field>[a-z_]*).*`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[a-z_]+)`")


def _diagnose(text: str, error: Exception) -> list[Fault]:
    """One fault of each faulty event, or the one of the body as a whole."""
    try:
        parts = _decode_parts(_tamed(text)).events
    except (ValueError, RecursionError) as part_error:
        return [_body_fault(part_error)]
    if len(parts) > MAX_EVENTS:
        return [_too_many(len(parts))]
    faults = [_event_fault(index, part) for index, part in enumerate(parts)]
    return [fault for fault in faults if fault] or [_body_fault(error)]


def _too_many(count: int) -> Fault:
    return Fault(None, "events", f"holds {count} events, more than the {MAX_EVENTS} of one call")


def _body_fault(error: Exception) -> Fault:
    if isinstance(error, msgspec.ValidationError):
        return Fault(None, *_field_and_message(error))
    if isinstance(error, RecursionError):
        return Fault(None, None, "the body is nested too deep")
    return Fault(None, None, f"the body is not JSON: {error}")


def _event_fault(index: int, part: msgspec.Raw) -> Fault | None:
    try:
        event = _decode_event(part)
        fault = _value_fault(event, _compact(event))
    except msgspec.ValidationError as error:
        return Fault(index, *_field_and_message(error))
    except ValueError as error:  # such as an integer of more digits than Python converts
        return Fault(index, None, str(error))
    return Fault(index, *fault) if fault else None


def _field_and_message(error: msgspec.ValidationError) -> tuple[str | None, str]:
    """The decoder ends its message with the place: "Expected `str`, got `int` - at `$.object_id`"."""
    message = str(error)
    place = _PLACE.search(message)
    named = _MISSING.search(message) or place
    told = message[: place.start()] if place else message
    return (named["field"] or None if named else None), told[:MAX_MESSAGE_CHARACTERS]


def _tamed(text: str) -> str:
    """The body in a form that the decoder can take apart, with every fault still in it.

    Half of a surrogate pair fails the decoder without a place named. It becomes a NUL, refused as well.
    """
    halves_marked = _ESCAPE.sub(lambda found: r"\u0000" if found["half"] else found[0], text)
    return "".join(_without_deep_nesting(halves_marked))


def _without_deep_nesting(text: str) -> Iterator[str]:
    depth = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        depth += token in ("[", "{")
        if depth <= DIAGNOSED_DEPTH:
            yield token
        elif depth == DIAGNOSED_DEPTH + 1 and token in ("[", "{"):
            yield "null"
        depth -= token in ("]", "}")
