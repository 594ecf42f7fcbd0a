"""Audiences of LINE's own limit, and what the rest of the platform notices of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from activity_platform.gateways.queue import LAST_ACTIVITY, Queues, connect
from activity_platform.last_activity.drain import drain
from activity_platform.settings import Settings
from activity_platform_tests.audience_world import World

SECONDS_OF_A_MILLION_AND_A_HALF = 60


def add_known_users(world: World, users: int) -> list[str]:
    """Users whose profiles are fresh; returns their LINE ids."""
    world.connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id, profile_fetched_at)"
        " SELECT %s, %s, 'U' || md5(i::text), now() FROM generate_series(1, %s) AS i",
        [world.organization_id, world.line_oa_id, users],
    )
    world.connection.execute("VACUUM ANALYZE line_user")
    return [row[0] for row in world.connection.execute("SELECT line_user_id FROM line_user ORDER BY id")]


def create_known(world: World, users: int) -> float:
    """Seconds for an audience of users that are all known."""
    ids = add_known_users(world, users)
    audience = world.add_audience()
    world.create(audience, ids)
    started = time.monotonic()
    (result,) = world.process()
    took = time.monotonic() - started
    assert (result.status, result.stats["members"], result.stats["added"]) == ("done", users, users)
    world.assert_consistent(audience, ids)
    return took


def test_an_audience_of_more_users_than_a_chunk_is_exact(world: World) -> None:
    create_known(world, 12_000)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_an_audience_of_a_million_and_a_half_known_users_is_made_in_a_minute(world: World) -> None:
    assert create_known(world, 1_500_000) < SECONDS_OF_A_MILLION_AND_A_HALF


def latency_while_applied(world: World, settings: Settings, users: int) -> list[float]:
    """Seconds from the queueing of a last activity to its commit, sorted, while members are applied.

    Every other message is of a user who becomes a member just then.
    """
    ids = add_known_users(world, users + 1_000)
    inside, outside = ids[: users : max(1, users // 1_000)], ids[users:]
    audience = world.add_audience()
    world.create(audience, ids[:users])
    applying = threading.Thread(target=world.process)
    stop = threading.Event()
    draining = threading.Thread(target=drain_until, args=(settings, stop))
    latencies: list[float] = []
    with (
        psycopg.connect(settings.database_url, autocommit=True) as connection,
        connect(settings.redis_url) as client,
    ):
        queues = Queues(client)
        draining.start()
        applying.start()
        pairs = zip(inside, outside, strict=False)
        while applying.is_alive():
            latencies += [
                committed_after(world, queues, connection, line_user_id)
                for line_user_id in next(pairs, (inside[0], outside[0]))
            ]
        stop.set()
        draining.join()
        applying.join()
    world.assert_consistent(audience, ids[:users])
    return sorted(latencies)


def committed_after(world: World, queues: Queues, connection: psycopg.Connection, line_user_id: str) -> float:
    message = {
        "lineUserId": line_user_id,
        "lineOaId": world.line_oa_id,
        "organizationId": world.organization_id,
        "activityType": "message",
        "activityStatus": "active",
    }
    started = time.monotonic()
    entry = queues.publish(LAST_ACTIVITY, json.dumps(message))
    milliseconds = int(entry.split("-")[0])
    while True:
        ((moved,),) = connection.execute(
            "SELECT coalesce(extract(epoch FROM last_activity_date) * 1000 >= %s, false)"
            " FROM line_user WHERE line_oa_id = %s AND line_user_id = %s",
            [milliseconds, world.line_oa_id, line_user_id],
        )
        if moved:
            return time.monotonic() - started
        time.sleep(0.005)


def drain_until(settings: Settings, stop: threading.Event) -> None:
    with connect(settings.redis_url) as client:
        while not stop.is_set():
            drain(settings.database_url, Queues(client), idle_seconds=1, max_seconds=60)


def p95(latencies: list[float]) -> float:
    return latencies[len(latencies) * 95 // 100]


Applied = Callable[[int], list[float]]


@pytest.fixture
def applied(world: World, settings: Settings) -> Applied:
    return lambda users: latency_while_applied(world, settings, users)


def test_last_activities_go_through_while_members_are_applied(applied: Applied) -> None:
    assert p95(applied(15_000)) < 2


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_last_activities_go_through_while_a_million_members_are_applied(applied: Applied) -> None:
    latencies = applied(1_000_000)
    assert len(latencies) > 100
    assert p95(latencies) < 2
