"""S10: updates that overlap, and outsiders that hold rows in any order, lose nothing and never get stuck."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg

from activity_platform.gateways.queue import LAST_ACTIVITY, Entry
from activity_platform.last_activity import update as update_module
from activity_platform.last_activity.messages import Activity, UserKey
from activity_platform_tests.last_activity.conftest import World, at, line_user_id

NOON = at("2026-03-01T12:00:00")
PEOPLE = 300
ROUNDS = 12


def activities(order: Sequence[int], round_: int) -> list[Activity]:
    entry = Entry(LAST_ACTIVITY, "1-1", b"", "1-1", "1-1")
    return [
        Activity(
            entry,
            UserKey(1, 1, line_user_id(number)),
            f"round {round_}",
            "active",
            NOON + timedelta(days=round_, microseconds=number),
        )
        for number in order
    ]


def updates(world: World, order: Sequence[int]) -> int:
    """Applies every round to all people, in that order of delivery; returns how many messages moved a row."""
    with update_module.connect(world.database_url) as connection:
        return sum(
            update_module.update(connection, {}, activities(order, round_)).updated
            for round_ in range(ROUNDS)
        )


def at_once(*calls: Callable[[], int]) -> list[int]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def check_rows(world: World) -> None:
    last = ROUNDS - 1
    expected = {
        (f"round {last}", NOON + timedelta(days=last, microseconds=number)) for number in range(PEOPLE)
    }
    found = world.connection.execute("SELECT last_activity_type, last_activity_date FROM line_user")
    assert set(found) == expected


def deadlocks(world: World) -> int:
    world.connection.execute("SELECT pg_stat_force_next_flush()")
    found = world.connection.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert found is not None
    return int(found[0])


def test_updates_in_opposite_orders_never_deadlock_each_other(world: World) -> None:
    world.add(*range(PEOPLE))
    forwards = list(range(PEOPLE))
    moved = at_once(
        lambda: updates(world, forwards),
        lambda: updates(world, forwards[::-1]),
        lambda: updates(world, random.Random(10).sample(forwards, PEOPLE)),
    )
    assert deadlocks(world) == 0
    assert PEOPLE <= sum(moved) <= PEOPLE * ROUNDS  # a round that was overtaken is stale
    check_rows(world)


def test_a_deadlock_with_an_outsider_is_retried_and_not_seen(world: World) -> None:
    world.add(*range(PEOPLE))
    world.connection.execute(f"ALTER DATABASE {world.connection.info.dbname} SET deadlock_timeout = '10ms'")
    done = threading.Event()

    def outsider() -> int:
        chance = random.Random(10)
        with psycopg.connect(world.database_url) as connection:
            while not done.is_set():
                try:
                    for number in chance.sample(range(PEOPLE), 3):
                        connection.execute(
                            "UPDATE line_user SET display_name = 'x' WHERE line_user_id = %s",
                            [line_user_id(number)],
                        )
                    connection.commit()
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()
        return 0

    def insider() -> int:
        try:
            return updates(world, list(range(PEOPLE)))
        finally:
            done.set()

    assert at_once(outsider, insider, outsider)[1] == PEOPLE * ROUNDS
    assert deadlocks(world) > 0
    check_rows(world)
