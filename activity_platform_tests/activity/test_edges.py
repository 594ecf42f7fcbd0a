"""The ranker's read: strongest first, whatever the rows look like."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from activity_platform.activity.edges import LIST_EDGES, Edge, list_edges, list_parameters
from activity_platform.failures import UsageError

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def put(
    connection: psycopg.Connection,
    target: str,
    *,
    weight: float = 1,
    last_at: datetime | str = NOW,
    actor: str = "u1",
    edge_type: str = "saved",
    target_type: str = "event",
) -> None:
    connection.execute(
        "INSERT INTO interaction_edges VALUES (%s, %s, %s, %s, %s, 1, %s, %s)",
        [actor, edge_type, target_type, target, weight, last_at, last_at],
    )


def read(
    connection: psycopg.Connection,
    *,
    half_life_days: float = 30,
    edge_type: str | None = None,
    targets: tuple[str, Sequence[str]] | None = None,
    limit: int = 50,
) -> list[Edge]:
    return list_edges(
        connection,
        "u1",
        now=NOW,
        half_life_days=half_life_days,
        edge_type=edge_type,
        targets=targets,
        limit=limit,
    )


def ids(edges: Sequence[Edge]) -> list[str]:
    return [edge.target_id for edge in edges]


def test_an_edge_counts_half_after_a_half_life(connection: psycopg.Connection) -> None:
    put(connection, "old", weight=4, last_at=NOW - 30 * DAY)
    put(connection, "new", weight=3, last_at=NOW)
    put(connection, "other", actor="u2")
    (new, old) = read(connection)

    assert (new.target_id, new.strength, new.weight) == ("new", 3.0, 3.0)
    assert (old.target_id, old.weight) == ("old", 4.0)
    assert old.strength == pytest.approx(2.0, rel=1e-12)
    assert old.first_at == old.last_at == NOW - 30 * DAY


def test_an_edge_of_the_future_is_not_stronger_than_its_weight(connection: psycopg.Connection) -> None:
    """S18c: unclamped, 30 half-lives ahead make a factor of 2^30."""
    put(connection, "future", last_at=NOW + 30 * DAY)
    assert [edge.strength for edge in read(connection, half_life_days=1)] == [1.0]


def test_odd_rows_have_their_place_and_never_fail_the_read(connection: psycopg.Connection) -> None:
    put(connection, "endless", weight=2, last_at="infinity")
    put(connection, "now", weight=1)
    put(connection, "tiny", weight=5e-324)
    put(connection, "huge-and-old", weight=1.7e308, last_at=NOW - 1_900 * DAY)
    put(connection, "old", last_at="0002-01-01Z")
    put(connection, "ancient", last_at="4000-01-01 BC")
    put(connection, "weightless", weight=0)
    put(connection, "timeless", weight=2, last_at="-infinity")
    found = read(connection, half_life_days=1)

    assert ids(found) == [
        *("endless", "now", "huge-and-old", "tiny", "old", "ancient"),
        *("timeless", "weightless"),
    ]
    assert all(math.isfinite(edge.strength) and 0 <= edge.strength <= edge.weight for edge in found)
    assert [edge.strength for edge in found[:2]] == [2.0, 1.0]
    assert found[2].strength > 0


def test_rank_does_not_underflow(connection: psycopg.Connection) -> None:
    """Strengths of 2^-2000 are all zero; their order is still that of the weights."""
    for target, weight in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        put(connection, target, weight=weight, last_at=NOW - 2000 * DAY)
    found = read(connection, half_life_days=1)

    assert ids(found) == ["b", "c", "a"]
    assert [edge.strength for edge in found] == [0, 0, 0]


def test_ranks_agree_with_the_formula(connection: psycopg.Connection) -> None:
    chosen = random.Random(4)
    for number in range(200):
        put(
            connection,
            f"t{number}",
            weight=chosen.randint(1, 400) / 2,
            last_at=NOW - chosen.random() * 200 * DAY,
        )
    found = read(connection, limit=200)

    expected = {edge.target_id: edge.weight * 0.5 ** ((NOW - edge.last_at) / (30 * DAY)) for edge in found}
    assert ids(found) == sorted(expected, key=lambda target: -expected[target])
    assert [edge.strength for edge in found] == pytest.approx([expected[target] for target in ids(found)])


def test_equal_ranks_keep_one_order_over_rewrites(connection: psycopg.Connection) -> None:  # S19
    names = [f"{letter}{number}" for letter in "aBä" for number in range(17)]
    for name in random.Random(1).sample(names, len(names)):
        put(connection, name)
    expected = sorted(names, key=str.encode)[:10]
    for turn in range(20):
        assert ids(read(connection, limit=10)) == expected
        if turn % 5 == 0:
            connection.execute("UPDATE interaction_edges SET event_count = event_count + 1")
            connection.execute("VACUUM FULL interaction_edges")


def test_ties_go_by_target_type_then_target_then_edge_type(connection: psycopg.Connection) -> None:
    put(connection, "b", target_type="event")
    put(connection, "a", target_type="event", edge_type="tapped")
    put(connection, "a", target_type="event", edge_type="saved")
    put(connection, "a", target_type="Event")
    put(connection, "a", target_type="user")
    found = [(edge.target_type, edge.target_id, edge.edge_type) for edge in read(connection)]

    assert found == sorted(found)
    assert len(found) == 5


@pytest.mark.parametrize("limit", [-1, 0, 501, 10**9, 2**63])
def test_a_limit_out_of_range_is_refused(connection: psycopg.Connection, limit: int) -> None:  # S19
    with pytest.raises(UsageError, match="limit must be from 1 to 500"):
        read(connection, limit=limit)


@pytest.mark.parametrize("edge_type", ["' OR 1=1--", "", "no such", "\0", "\udc00"])
def test_an_unknown_edge_type_is_an_empty_list(connection: psycopg.Connection, edge_type: str) -> None:
    """S19."""
    put(connection, "t")
    assert read(connection, edge_type=edge_type) == []


def test_candidates_are_the_asked_targets_only(connection: psycopg.Connection) -> None:
    for target in ("a", "b", "c"):
        put(connection, target, weight=len(target))
        put(connection, target, target_type="user")
    put(connection, "a", edge_type="tapped", weight=2)
    found = read(connection, targets=("event", ["a", "c", "missing", "a", "\0"]))

    assert [(edge.target_type, edge.target_id, edge.edge_type) for edge in found] == [
        ("event", "a", "tapped"),
        ("event", "a", "saved"),
        ("event", "c", "saved"),
    ]
    assert ids(read(connection, targets=("event", ["a"]), edge_type="tapped")) == ["a"]
    assert read(connection, targets=("event", [])) == []


def test_more_targets_than_a_ranker_asks_for_are_refused(connection: psycopg.Connection) -> None:
    read(connection, targets=("event", ["t"] * 200))
    with pytest.raises(UsageError, match="200 targets"):
        read(connection, targets=("event", ["t"] * 201))


def test_without_a_time_the_databases_clock_counts(connection: psycopg.Connection) -> None:
    put(connection, "t", last_at=datetime.now(UTC) - 30 * DAY)
    (edge,) = list_edges(connection, "u1", now=None, half_life_days=30)
    assert edge.strength == pytest.approx(0.5, rel=1e-4)


def test_a_read_touches_the_actors_rows_only(connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO interaction_edges SELECT 'u' || n % 1000, 'saved', 'event', 't' || n, 1, 1, now(), now()"
        " FROM generate_series(1, 50000) AS n"
    )
    connection.execute("VACUUM ANALYZE interaction_edges")
    parameters = list_parameters("u1", now=NOW, half_life_days=30)
    lines = connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF) {LIST_EDGES}", parameters).fetchall()
    plan = "\n".join(line for (line,) in lines)

    assert "Index Cond: (actor_id = 'u1'::text)" in plan
    assert "Rows Removed by Filter" not in plan
    assert "Seq Scan" not in plan
