"""`GET /api/v1/activity/edges`: whose edges, which, how many, in what form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import psycopg
import pytest

from activity_platform_tests.ingest.served import EDGES, Served, assert_problem, faults, new_user


@pytest.fixture
def actor(api: Served, user: str) -> str:
    """An actor with 60 edges of falling weight and one of another type."""
    now = datetime.now(UTC)
    rows = [
        (user, "saved", "event", f"e{n:02}", 60.0 - n, n + 1, now - timedelta(days=9), now) for n in range(60)
    ]
    rows.append((user, "visited", "location", "l 1/ก", 0.5, 1, now, now))
    with psycopg.connect(api.settings.database_url) as connection:
        connection.cursor().executemany(
            "INSERT INTO interaction_edges VALUES (%s,%s,%s,%s,%s,%s,%s,%s)", rows
        )
    return user


def test_the_strongest_fifty_come_with_every_field(api: Served, actor: str) -> None:
    response = api.get_edges("", actor)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    edges = response.json()["edges"]
    assert [edge["target_id"] for edge in edges] == [f"e{n:02}" for n in range(50)]
    first = edges[0]
    assert first["strength"] == pytest.approx(60, rel=1e-3)
    assert first["strength"] <= 60
    assert {name: first[name] for name in ("edge_type", "target_type", "weight", "event_count")} == {
        "edge_type": "saved", "target_type": "event", "weight": 60, "event_count": 1,
    }  # fmt: skip
    ages = [datetime.now(UTC) - datetime.fromisoformat(first[name]) for name in ("first_at", "last_at")]
    assert [age.days for age in ages] == [9, 0]


@pytest.mark.parametrize(("query", "count"), [("limit=1", 1), ("limit=500", 61), ("limit=61&x=y&x=z", 61)])
def test_a_limit_from_1_to_500_is_kept(api: Served, actor: str, query: str, count: int) -> None:
    """S19; unknown parameters are ignored."""
    assert len(api.get_edges(query, actor).json()["edges"]) == count


@pytest.mark.parametrize(
    "limit",
    [
        "",
        "0",
        "-1",
        "501",
        "1.5",
        "1e2",
        "abc",
        "+5",
        "05",
        "0x5",
        "5 ",
        " 5",
        "1_0",
        "٣",
        "9223372036854775808",
        "9" * 5000,
    ],
)
def test_another_limit_is_refused(api: Served, user: str, limit: str) -> None:
    """S19"""
    response = api.get_edges(f"limit={quote(limit)}", user)
    assert_problem(response, 400)
    assert faults(response) == [(None, "limit")]


def test_edges_of_one_type(api: Served, actor: str) -> None:
    [edge] = api.get_edges("edge_type=visited", actor).json()["edges"]
    assert (edge["target_type"], edge["target_id"]) == ("location", "l 1/ก")


@pytest.mark.parametrize("edge_type", ["", "Saved", "' OR 1=1--", "\0", "x" * 5000, "%", "saved "])
def test_an_unknown_edge_type_has_no_edges(api: Served, actor: str, edge_type: str) -> None:
    """S19"""
    response = api.get_edges(f"edge_type={quote(edge_type)}", actor)
    assert (response.status_code, response.json()) == (200, {"edges": []})


def test_edges_to_some_targets(api: Served, actor: str) -> None:
    response = api.get_edges(
        "target_type=event&target_id=e07&target_id=e03&target_id=none&target_id=e03", actor
    )
    assert [edge["target_id"] for edge in response.json()["edges"]] == ["e03", "e07"]
    response = api.get_edges(f"target_type=location&target_id=e01&target_id={quote('l 1/ก', safe='')}", actor)
    assert [edge["target_id"] for edge in response.json()["edges"]] == ["l 1/ก"]
    most = "&".join(f"target_id=t{n}" for n in range(199))
    assert len(api.get_edges(f"target_type=event&target_id=e01&{most}", actor).json()["edges"]) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("target_type=event", "target_type"),
        ("target_id=e1", "target_type"),
        ("target_type=event&" + "&".join(["target_id=e1"] * 201), "target_id"),
        ("target_type=event&target_id=", "target_id"),
        ("target_type=event&target_id=" + "x" * 257, "target_id"),
        ("target_type=event&target_id=%00", "target_id"),
        ("target_type=event&target_type=event&target_id=x", "target_type"),
        ("edge_type=saved&edge_type=visited", "edge_type"),
        ("limit=1&limit=2", "limit"),
    ],
)
def test_other_parameters_are_refused_and_named(api: Served, user: str, query: str, field: str) -> None:
    response = api.get_edges(query, user)
    assert_problem(response, 400)
    assert faults(response) == [(None, field)]


def test_a_query_that_is_not_utf8_is_refused(api: Served, user: str) -> None:
    assert_problem(api.get_edges("edge_type=%ff", user), 400)


def test_another_actors_edges_take_the_scope(api: Served, actor: str) -> None:
    other = new_user()
    for scope in ("", "edges:write", "edges:reading", "edges", "Edges:read", "edges:read,x"):
        for asked in (actor, other):
            assert_problem(api.get_edges(f"actor_id={asked}", other, scope=scope), 403)
    for scope in ("edges:read", "x edges:read y"):
        response = api.get_edges(f"actor_id={actor}&limit=2", other, scope=scope)
        assert [edge["target_id"] for edge in response.json()["edges"]] == ["e00", "e01"]
    assert api.get_edges("", other, scope="edges:read").json() == {"edges": []}


@pytest.mark.parametrize("actor_id", ["", "a" * 257, "\0"])
def test_an_actor_that_cannot_be_is_refused(api: Served, user: str, actor_id: str) -> None:
    assert_problem(api.get_edges(f"actor_id={quote(actor_id)}", user, scope="edges:read"), 400)


def test_equal_edges_keep_their_order(api: Served, user: str) -> None:
    """S19"""
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO interaction_edges SELECT %s, 'saved', 'event', 'e' || n, 3, 1, now(), now()"
            " FROM generate_series(1, 50) AS n ORDER BY random()",
            [user],
        )
        answers = {api.get_edges("limit=10", user).text.count("e1") for _ in range(10)}
        first = [edge["target_id"] for edge in api.get_edges("limit=10", user).json()["edges"]]
        connection.execute("VACUUM FULL interaction_edges")
        again = [edge["target_id"] for edge in api.get_edges("limit=10", user).json()["edges"]]
    assert first == again == sorted(f"e{n}" for n in range(1, 51))[:10]
    assert len(answers) == 1


def test_without_a_token_nobody_reads(api: Served) -> None:
    assert_problem(api.client.get(api.url + EDGES), 401)
    assert_problem(api.client.post(api.url + EDGES), 405)
