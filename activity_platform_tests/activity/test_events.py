"""The one parser of a body: what it makes of good ones, what it says of bad ones."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activity_platform.activity import events
from activity_platform.activity.event_log import submission
from activity_platform.activity.events import EventBatch, InvalidEvents


def event(**changes: Any) -> dict[str, Any]:
    return {"verb": "view", "object_type": "event", "object_id": "p", **changes}


def parsed(*items: Any) -> EventBatch:
    return events.parse(json.dumps({"events": items}).encode())


def faults(content: bytes) -> list[tuple[int | None, str | None]]:
    with pytest.raises(InvalidEvents) as caught:
        events.parse(content)
    assert all(fault.message for fault in caught.value.faults)
    return [(fault.index, fault.field) for fault in caught.value.faults]


def test_a_context_is_kept_as_compact_json() -> None:
    batch = parsed(event(context={"b": [1, 2.5, None], "a": {"é": "\u2028"}}), event())
    assert list(batch.contexts) == ['{"b":[1,2.5,null],"a":{"é":"\u2028"}}', None]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
)


@given(st.dictionaries(st.text(), json_values, max_size=5), st.booleans())
def test_a_context_means_after_parsing_what_it_meant_before(context: dict[str, Any], escaped: bool) -> None:
    """Or it is refused, and then for a reason."""
    content = json.dumps({"events": [event(context=context)]}, ensure_ascii=escaped).encode()
    text = json.dumps(context)
    if "\\u0000" in text.replace("\\\\", ""):
        assert faults(content) == [(0, "context")]
    else:
        [kept] = events.parse(content).contexts
        assert kept is not None
        assert same(json.loads(kept), context)


def same(one: Any, other: Any) -> bool:
    """Equal, and numbers of the same kind; 0.0 and -0.0 are one number to PostgreSQL."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@given(st.binary(max_size=200))
def test_no_bytes_end_in_another_error_than_a_refusal(content: bytes) -> None:
    for body in (content, b'{"events":[' + content + b"]}", b'{"events":[{"context":{' + content + b"}}]}"):
        with contextlib.suppress(InvalidEvents):
            events.parse(body)


@pytest.mark.parametrize("depth", [33, 100, 129, 1_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"k":', "}"), ('[{"]":', "}]")])
def test_a_context_of_any_depth_is_named(depth: int, opening: str, closing: str) -> None:
    deep = f'{{"k":{opening * depth}1{closing * depth}}}'
    content = '{"events":[%s,{"verb":"view","object_type":"event","object_id":"p","context":%s},{"verb":1}]}'
    found = faults((content % (json.dumps(event()), deep)).encode())
    assert found == [(1, "context"), (2, "verb")]


def test_depth_outside_of_events_is_a_fault_of_the_body() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert faults(f'{{"x":{deep},"events":[]}}'.encode()) == [(None, None)]
    assert faults(f'{{"events":{deep}}}'.encode()) == [(0, None)]
    assert faults(b"[" * 200_000) == [(None, None)]


def test_half_a_pair_is_named_wherever_it_stands() -> None:
    good, half = "\\ud83d\\ude00", "\\ud83d"
    content = (
        '{"events":[{"verb":"view","object_type":"event","object_id":"%s"},'
        '{"verb":"view","object_type":"event","object_id":"%s"},'
        '{"verb":"view","object_type":"event","object_id":"p","context":{"%s":["%s"]}},'
        '{"verb":"view","object_type":"event","object_id":"p","context":{"k":["%s"]}}]}'
    )
    assert faults((content % (good, half, good, good, good + half)).encode()) == [
        (1, "object_id"),
        (3, "context"),
    ]
    assert [e.object_id for e in events.parse((content % ((good,) * 5)).encode()).events][:2] == ["😀", "😀"]


def test_numbers_are_float64_and_integers_of_its_range_are_exact() -> None:
    largest = int(math.ldexp(1 - 2**-53, 1024))
    for number in (largest, -largest, 2**63, 2**64, 10**300):
        assert parsed(event(context={"n": number})).contexts[0] == f'{{"n":{number}}}'
    for text in ("1e309", "-1e309", str(2 * largest), "1" + "0" * 309, "9" * 5000):
        content = json.dumps({"events": [event(context={"n": "NUMBER"})]}).replace('"NUMBER"', text)
        assert faults(content.encode()) == [(0, "context")]


def test_a_long_number_in_a_text_is_no_number() -> None:
    assert len(parsed(event(context={"n": "9" * 400}))) == 1


def test_a_quoted_value_is_cut_short() -> None:
    with pytest.raises(InvalidEvents) as caught:
        parsed(event(verb="v" * 100_000))
    assert len(caught.value.faults[0].message) <= events.MAX_MESSAGE_CHARACTERS


def test_rows_are_escaped_for_copy() -> None:
    special = "a\\b\tc\nd\re\\N"
    rows = submission(
        special, parsed(event(object_id=special, surface=special, context={special: special}))
    ).rows
    assert rows.count(b"\n") == 1
    assert rows.rstrip(b"\n").count(b"\t") == 5
    assert rows.startswith(b"a\\\\b\\tc\\nd\\re\\\\N\tview\tevent\ta\\\\b\\tc\\nd\\re\\\\N\t")
    plain = submission("u\\", parsed(event(), event(surface="s", context={}))).rows
    assert plain == b"u\\\\\tview\tevent\tp\t\\N\t\\N\nu\\\\\tview\tevent\tp\ts\t{}\n"
