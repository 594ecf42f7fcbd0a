"""What `POST /api/v1/activity/events` takes, at each limit and one beyond, and what it refuses with what."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from activity_platform.activity.vocabulary import ObjectType, Verb
from activity_platform_tests.ingest.served import EVENTS, Served, assert_problem, body, event, faults


def test_every_word_of_the_vocabulary_is_stored_as_it_was_sent(api: Served, user: str) -> None:
    sent = [event(verb=verb, object_type=object_type) for verb in Verb for object_type in ObjectType]

    for start in range(0, len(sent), 100):
        part = sent[start : start + 100]
        response = api.post(body(*part), user)
        assert (response.status_code, response.json()) == (202, {"accepted": len(part)})

    assert [(row["verb"], row["object_type"]) for row in api.rows(user)] == [
        (item["verb"], item["object_type"]) for item in sent
    ]


AWKWARD = "a\\b\"c/d\te\nf\rg\u0007h\u007f \u2028 é 😀 \\N \\. \\u0000 {x} ' $1 %s"


def test_awkward_text_is_stored_exactly(api: Served, user: str) -> None:
    context = {
        AWKWARD: [AWKWARD, {"deep": AWKWARD}],
        "": "",
        "n": None,
        "t": True,
        "f": [0, -1, 1.5, 2**70],
    }
    for content in (AWKWARD, "\\N", "\\.", "\\", "N", " ", "\t", "0", "é" * 256):
        sent = event(object_id=content, surface=content[:64], context=context)
        assert api.post(body(sent), user).status_code == 202
        stored = api.rows(user)[-1]
        assert {name: stored[name] for name in sent} == sent


def test_what_is_absent_null_or_empty_is_told_apart(api: Served, user: str) -> None:
    """S5: a null context is no context."""
    sent = [event(), event(surface=None, context=None), event(surface="", context={})]
    assert api.post(body(*sent), user).json() == {"accepted": 3}
    assert [(row["surface"], row["context"]) for row in api.rows(user)] == [
        (None, None),
        (None, None),
        ("", {}),
    ]


# S1: NUL, and the other text and numbers that PostgreSQL can't hold


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"context": {"q": "a\0b"}}, "context"),
        ({"context": {"a\0b": 1}}, "context"),
        ({"context": {"q": [{"x": ["\0"]}]}}, "context"),
        ({"object_id": "a\0"}, "object_id"),
        ({"surface": "\0"}, "surface"),
        ({"context": {"q": "\ud800"}}, "context"),
        ({"context": {"\udfff": 1}}, "context"),
        ({"object_id": "\udc00\ud800"}, "object_id"),
        ({"surface": "x\ud83d"}, "surface"),
        ({"context": {"n": 10**309}}, "context"),
        ({"context": {"n": [-(10**5000)]}}, "context"),
    ],
)
def test_what_postgres_cannot_hold_is_refused_and_named(
    api: Served, user: str, changes: dict[str, Any], field: str
) -> None:
    """S1: among 100 events, the 57th."""
    events = [event(object_id=f"p{number}") for number in range(100)]
    events[57] = event(**changes)
    # Python writes no integer of more than 4300 digits, but its text does not differ.
    content = (
        body(*events) if field != "context" or "n" not in changes["context"] else _with_long_integers(events)
    )
    response = api.post(content, user)
    assert_problem(response, 400)
    assert faults(response) == [(57, field)]
    assert api.rows(user) == []


def _with_long_integers(events: list[dict[str, Any]]) -> bytes:
    number = events[57]["context"]["n"]
    text = "[-1" + "0" * 5000 + "]" if isinstance(number, list) else "1" + "0" * 309
    events[57]["context"]["n"] = "NUMBER"
    return body(*events).replace(b'"NUMBER"', text.encode())


@pytest.mark.parametrize("number", ["1e309", "-1e309", "1e400", "1.8e308", "9" * 310])
def test_numbers_beyond_float64_are_refused(api: Served, user: str, number: str) -> None:
    content = body(event(), event(context={"n": "NUMBER"})).replace(b'"NUMBER"', number.encode())
    response = api.post(content, user)
    assert (response.status_code, faults(response)) == (400, [(1, "context")])


@pytest.mark.parametrize(
    "number",
    [
        "1.7976931348623157e308",
        "-1.7976931348623157e308",
        "1" + "0" * 308,
        "123456789012345678901234567890",
        "5e-324",
    ],
)
def test_numbers_of_float64_are_stored(api: Served, user: str, number: str) -> None:
    content = body(event(context={"n": "NUMBER"})).replace(b'"NUMBER"', number.encode())
    assert api.post(content, user).status_code == 202
    with psycopg.connect(api.settings.database_url) as connection:
        kept = connection.execute(
            "SELECT (context->>'n')::numeric = %s::numeric FROM activity_events WHERE user_id = %s",
            [number, user],
        ).fetchone()
    assert kept == (True,)


def test_an_escape_of_a_backslash_is_no_escape_of_nul(api: Served, user: str) -> None:
    sent = event(object_id="\\u0000", context={"\\ud800": "\\u0000"})
    assert api.post(body(sent), user).status_code == 202
    assert api.rows(user)[0]["context"] == sent["context"]


# S2: one bad event, and 100 against 101


def test_one_bad_event_refuses_all_and_is_the_only_one_named(api: Served, user: str) -> None:
    """S2"""
    events = [event(object_id=f"p{number}") for number in range(100)]
    events[50] = event(verb="")
    for _ in range(3):
        response = api.post(body(*events), user)
        assert_problem(response, 400)
        assert faults(response) == [(50, "verb")]
    assert api.rows(user) == []


def test_every_bad_event_is_named(api: Served, user: str) -> None:
    events: list[Any] = [
        event(verb="explode"), event(), event(object_type=7), event(object_id=""), event(surface="s" * 65),
        event(),
        event(context=[1]), {}, None, [], "x", event(context={"q": "\0"}), event(context={"q": "\ud800"}),
    ]  # fmt: skip
    response = api.post(body(*events), user)
    assert faults(response) == [
        (0, "verb"), (2, "object_type"), (3, "object_id"), (4, "surface"), (6, "context"), (7, "verb"),
        (8, None), (9, None), (10, None), (11, "context"), (12, "context"),
    ]  # fmt: skip
    assert all(fault["message"] for fault in response.json()["errors"])
    assert api.rows(user) == []


def test_a_hundred_events_are_taken_and_one_more_is_refused(api: Served, user: str) -> None:
    """S2: never a silent cut."""
    events = [event(object_id=f"p{number}") for number in range(101)]
    assert api.post(body(*events[:100]), user).json() == {"accepted": 100}
    response = api.post(body(*events), user)
    assert_problem(response, 400)
    assert faults(response) == [(None, "events")]
    assert len(api.rows(user)) == 100


def test_no_event_at_all_is_accepted(api: Served, user: str) -> None:
    """S5"""
    response = api.post(body(), user)
    assert (response.status_code, response.json()) == (202, {"accepted": 0})


# S3: 202 means stored


def test_accepted_rows_are_visible_before_the_answer(api: Served, user: str) -> None:
    """S3"""
    stored = 0
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        for size in (1, 2, 99, 0, 100, 7):
            accepted = api.post(body(*[event()] * size), user).json()["accepted"]
            stored += accepted
            count = connection.execute(
                "SELECT count(*) FROM activity_events WHERE user_id = %s", [user]
            ).fetchone()
            assert (accepted, count) == (size, (stored,))


def test_unknown_keys_are_ignored(api: Served, user: str) -> None:
    """S3"""
    content = json.dumps({"events": [event(foo=1, bar={"x": []})], "foo": [1], "": None}).encode()
    assert api.post(content, user).json() == {"accepted": 1}
    assert len(api.rows(user)) == 1


# S4: lengths


@pytest.mark.parametrize(
    ("field", "fits", "too_long"),
    [
        ("object_id", "a" * 256, "a" * 257),
        ("object_id", "😀" * 256, "😀" * 257),
        ("surface", "s" * 64, "s" * 65),
        ("surface", "ก" * 64, "ก" * 65),
        ("context", {"k": "x" * (8192 - 8)}, {"k": "x" * (8192 - 7)}),
        ("context", {"k": "é" * (4096 - 4)}, {"k": "é" * (4096 - 4) + "x"}),
    ],
)
def test_a_value_of_the_limit_is_stored_whole_and_one_more_is_refused(
    api: Served, user: str, field: str, fits: Any, too_long: Any
) -> None:
    """S4: lengths are in code points, of a context in bytes of compact UTF-8 JSON."""
    assert api.post(body(event(**{field: fits})), user).status_code == 202
    assert [row[field] for row in api.rows(user)] == [fits]
    response = api.post(body(event(), event(**{field: too_long})), user)
    assert_problem(response, 400)
    assert faults(response) == [(1, field)]
    assert len(api.rows(user)) == 1


def test_the_longest_ids_fit_the_key_of_an_edge(api: Served) -> None:
    actor, target = "\U0010ffff" * 256, "\U0010fffe" * 256
    assert (
        api.post(body(event(verb="save", object_type="location", object_id=target)), actor).status_code == 202
    )
    with psycopg.connect(api.settings.database_url) as connection:
        connection.execute(
            "INSERT INTO interaction_edges VALUES (%s, 'dismissed', 'location', %s, 3, 1, now(), now())",
            [actor, target],
        )
    [edge] = api.get_edges(f"target_type=location&target_id={target}", actor).json()["edges"]
    assert edge["target_id"] == target


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"object_id": "a" * 10_000}, "object_id"),
        ({"surface": "s" * 5_000}, "surface"),
        ({"verb": "v" * 1_000}, "verb"),
    ],
)
def test_far_too_long_values_are_named_shortly(
    api: Served, user: str, changes: dict[str, Any], field: str
) -> None:
    """S4"""
    response = api.post(body(event(**changes)), user)
    assert (response.status_code, faults(response)) == (400, [(0, field)])
    assert len(response.content) < 1_000


def test_a_context_of_a_mebibyte_is_too_large(api: Served, user: str) -> None:
    """S4"""
    assert_problem(api.post(body(event(context={"k": "x" * 2**20})), user), 413)
    assert_problem(api.post(body(event(context={"k": "x" * 900_000})), user), 400)


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("depth", "status"), [(30, 202), (31, 202), (32, 400), (200, 400), (5_000, 400), (150_000, 400)]
)
def test_a_context_is_at_most_32_levels_deep(api: Served, user: str, depth: int, status: int) -> None:
    """The context itself is one level, scalars add none."""
    content = body(event(), event(context={"k": "DEEP"})).replace(b'"DEEP"', _nested(depth).encode())
    response = api.post(content, user)
    assert response.status_code == status
    assert faults(response) == ([(1, "context")] if status == 400 else [])
    objects = body(event(context={"k": "DEEP"})).replace(b'"DEEP"', b'{"k":' * depth + b"1" + b"}" * depth)
    assert api.post(objects, user).status_code == status


# S5: valid JSON of the wrong shape


@pytest.mark.parametrize(
    "content",
    [
        b"null", b"[]", b'"x"', b"1", b"", b"{}", b'{"events":null}', b'{"events":{}}', b'{"events":"x"}',
        b'{"events":[]', b'{"events":[],}', b'{"events":[]} x', b"{'events':[]}", b'{"events":[NaN]}',
        b'{"events":\xff[]}', b'{"events":[],"x":"\xff"}', '{"events":[]}'.encode("utf-16"), b"\x00",
        b"\x1f\x8b",
        b"[" * 100_000, b'{"events":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_of_another_shape_is_refused(api: Served, user: str, content: bytes) -> None:
    """S5"""
    assert_problem(api.post(content, user), 400)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (None, None),
        ([], None),
        (event(verb=1), "verb"),
        (event(verb=" "), "verb"),
        (event(verb="VIEW"), "verb"),
        (event(verb="view "), "verb"),
        (event(object_id=3146), "object_id"),
        (event(object_id=None), "object_id"),
        (event(object_type="Event"), "object_type"),
        (event(surface=1), "surface"),
        (event(context=[1]), "context"),
        (event(context="s"), "context"),
        (event(context=1), "context"),
        (event(context=False), "context"),
    ],
)
def test_an_event_of_another_shape_is_refused_and_named(
    api: Served, user: str, item: Any, field: str | None
) -> None:
    """S5: a number is no text, and nothing is trimmed or folded."""
    response = api.post(body(item), user)
    assert_problem(response, 400)
    assert faults(response) == [(0, field)]
    assert api.rows(user) == []


def test_of_a_name_that_comes_twice_the_last_counts(api: Served, user: str) -> None:
    twice = b'{"a":1,"a":{"b":2,"b":3}}'
    content = body(event(context="TWICE")).replace(b'"TWICE"', twice)
    assert api.post(content, user).status_code == 202
    assert api.rows(user)[0]["context"] == {"a": {"b": 3}}


# S6: content types


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json", "APPLICATION/JSON", "application/json; charset=UTF-8",
        "application/json;charset=utf-8",
        'application/json; charset="utf-8"', "application/json;charset=utf8",
        "application/json ; charset=UTF8",
        "application/json; Charset=Utf-8", "application/json;", "application/json; profile=x; charset=utf-8",
    ],
)  # fmt: skip
def test_json_in_any_spelling_of_utf8_is_taken(api: Served, user: str, content_type: str) -> None:
    """S6"""
    assert api.post(body(event()), user, Content_Type=content_type).status_code == 202
    assert len(api.rows(user)) == 1


@pytest.mark.parametrize(
    "content_type",
    [
        "", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16", "application/jsonx", "application/problem+json", "json", ";",
        "application/json, application/json", "application/json; charset=utf-8; charset=latin-1", "text/json",
    ],
)  # fmt: skip
def test_other_content_types_are_refused(api: Served, user: str, content_type: str) -> None:
    """S6"""
    assert_problem(api.post(body(event()), user, Content_Type=content_type), 415)
    assert api.rows(user) == []


def test_a_missing_content_type_is_refused(api: Served, user: str) -> None:
    """S6"""
    headers = {"Authorization": f"Bearer {api.token(user)}"}
    assert_problem(api.client.post(api.url + EVENTS, content=body(event()), headers=headers), 415)


def test_a_byte_order_mark_is_ignored(api: Served, user: str) -> None:
    """S6"""
    assert api.post(b"\xef\xbb\xbf" + body(event()), user).status_code == 202
    assert_problem(api.post(b"\xef\xbb\xbf" * 2 + body(event()), user), 400)


# S7: gzip


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "identity, gzip"])
def test_gzip_is_inflated(api: Served, user: str, coding: str) -> None:
    """S7 a"""
    assert api.post(gzip.compress(body(event())), user, Content_Encoding=coding).status_code == 202
    assert len(api.rows(user)) == 1


GOOD = gzip.compress(body(event()), mtime=0)  # workers must collect the same tests


@pytest.mark.parametrize(
    ("content", "coding", "status"),
    [
        (GOOD[: len(GOOD) // 2], "gzip", 400),
        (GOOD[:-1], "gzip", 400),
        (b"", "gzip", 400),
        (body(event()), "gzip", 400),
        (GOOD + b"x", "gzip", 400),
        (GOOD + b"\0" * 8, "gzip", 400),
        (zlib.compress(body(event())), "gzip", 400),
        (GOOD[:-8] + b"\0" * 8, "gzip", 400),
        (GOOD, "", 400),
        (GOOD, "identity", 400),
        (gzip.compress(GOOD, mtime=0), "gzip, gzip", 415),
        (GOOD, "br", 415),
        (GOOD, "deflate", 415),
        (GOOD, "gzip;q=1", 415),
    ],
)
def test_what_is_not_gzip_is_refused(
    api: Served, user: str, content: bytes, coding: str, status: int
) -> None:
    """S7 b-f"""
    response = api.post(content, user, Content_Encoding=coding)
    assert_problem(response, status)
    assert api.rows(user) == []
    if status == 415:
        assert response.headers["accept-encoding"] == "gzip"


def test_gzip_of_several_members_is_one_body(api: Served, user: str) -> None:
    whole = body(event())
    content = gzip.compress(whole[:10]) + gzip.compress(b"") + gzip.compress(whole[10:])
    assert api.post(content, user, Content_Encoding="gzip").status_code == 202
    assert_problem(api.post(gzip.compress(b" ") * 200 + GOOD, user, Content_Encoding="gzip"), 400)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_body_of_a_mebibyte_is_taken_and_one_byte_more_is_not(
    api: Served, user: str, compressed: bool
) -> None:
    def send(size: int) -> httpx.Response:
        content = body(event()).ljust(size)
        return (
            api.post(gzip.compress(content), user, Content_Encoding="gzip")
            if compressed
            else api.post(content, user)
        )

    assert send(2**20).status_code == 202
    assert_problem(send(2**20 + 1), 413)
    assert len(api.rows(user)) == 1


def test_a_gzip_bomb_stops_at_the_limit(api: Served, user: str) -> None:
    bomb = gzip.compress(b" " * 50_000_000, 9)
    assert_problem(api.post(bomb, user, Content_Encoding="gzip"), 413)


# S11: who is the actor, and when


def test_user_and_time_are_the_servers_whatever_the_body_says(api: Served, user: str) -> None:
    """S11"""
    foreign = {"user_id": "u2", "actor_id": "u2", "created_at": "2020-01-01", "id": 1}
    content = json.dumps({"events": [event(**foreign)], **foreign}).encode()
    before = datetime.now(UTC)
    assert api.post(content, user).status_code == 202
    [row] = api.rows(user)
    assert abs(datetime.fromisoformat(row["created_at"]) - before) < timedelta(minutes=1)
    assert api.rows("u2") == []


# Order of the checks


def test_the_first_check_that_fails_decides(api: Served, user: str) -> None:
    url, bad = api.url + EVENTS, {"Content-Type": "text/plain", "Content-Encoding": "br"}
    large = b"x" * (2**20 + 1)
    token = {"Authorization": f"Bearer {api.token(user)}"}
    json_type = {"Content-Type": "application/json"}

    assert_problem(api.client.post(f"{api.url}/nothing", content=large, headers=bad), 404)
    assert_problem(api.client.put(url, content=large, headers=bad), 405)
    assert_problem(api.client.post(url, content=large, headers=bad), 401)
    assert_problem(api.client.post(url, content=large, headers=token | bad), 415)
    assert_problem(
        api.client.post(url, content=large, headers=token | json_type | {"Idempotency-Key": "k" * 129}), 413
    )
    assert_problem(api.client.post(url, content=b"x", headers=token | json_type), 400)


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "BREW"]
)
def test_other_methods_are_405_and_told_what_is_allowed(api: Served, method: str) -> None:
    response = api.client.request(method, api.url + EVENTS)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.headers["content-type"] == "application/problem+json"
    assert api.client.request(method, f"{api.url}/other").status_code == 404


@pytest.mark.parametrize(
    "path", ["/", f"{EVENTS}/", f"/{EVENTS}", EVENTS.upper(), "/api/v1/activity", "/healthz/", "/%00", "/%ff"]
)
def test_other_paths_are_404(api: Served, path: str) -> None:
    assert_problem(api.client.post(api.url + path, content=body(event())), 404)
