"""From a message on the queue to the row: the cases that broke consumers like this one elsewhere."""

from __future__ import annotations

import json
import logging
import random
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis

from activity_platform.failures import TransientFailure
from activity_platform.gateways import queue as queue_module
from activity_platform.gateways.queue import LAST_ACTIVITY, Queues
from activity_platform.last_activity import update as update_module
from activity_platform.last_activity.drain import DrainResult, drain, drain_step
from activity_platform_tests.last_activity.conftest import NEVER, World, at, counts, line_user_id, payload

NOON = at("2026-03-01T12:00:00")


def test_an_activity_fills_the_four_columns_and_nothing_else(world: World) -> None:
    world.add(1)
    before = world.connection.execute("SELECT * FROM line_user").fetchall()
    world.says(1, "follow", when=NOON)
    assert counts(world.drain()) == (1, 1, 0, 0, 0)
    assert world.row(1) == ("follow", "active", "first", NOON)
    world.connection.execute(
        """UPDATE line_user SET last_activity_type = NULL, last_activity_status = NULL,
           last_activity_period = NULL, last_activity_date = NULL"""
    )
    assert world.connection.execute("SELECT * FROM line_user").fetchall() == before


def test_ids_may_come_as_text(world: World) -> None:
    world.add(1, oa=7, organization=8)
    world.says(1, lineOaId="7", organizationId="8")
    assert counts(world.drain()) == (1, 1, 0, 0, 0)


def test_s02_what_is_done_leaves_nothing_in_redis(world: World) -> None:
    world.connection.execute(
        """INSERT INTO line_user (organization_id, line_oa_id, line_user_id)
           SELECT 1, 1, 'U' || lpad(to_hex(n), 32, '0') FROM generate_series(1, 1000) n"""
    )
    messages = [json.dumps(payload(line_user_id(number % 1000 + 1))) for number in range(10_000)]
    world.queues.publish_many(LAST_ACTIVITY, messages)
    assert counts(world.drain()) == (10_000, 10_000, 0, 0, 0)
    assert world.queues.client.dbsize() == 1  # the empty stream itself
    found = world.connection.execute("SELECT count(*) FROM line_user WHERE last_activity_period IS NOT NULL")
    assert found.fetchone() == (1_000,)


def test_s06_a_poison_message_goes_to_dead_and_the_rest_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add(1, 2)
    world.says(1)
    bad = world.queue("{not json")
    world.says(2)
    with caplog.at_level(logging.ERROR):
        assert counts(world.drain()) == (3, 2, 0, 0, 1)
    assert world.row(1) != NEVER != world.row(2)
    assert world.waiting() == 0
    (letter,) = world.dead()
    assert (letter.entry_id, letter.reason, letter.attempts) == (bad, "bad_payload", 1)
    assert letter.payload == b"{not json"
    (record,) = caplog.records
    assert bad in record.message


def test_s07_one_undecodable_byte_costs_one_message(world: World, redis_url: str) -> None:
    world.add(1, 2)
    good = json.dumps(payload(line_user_id(1))).encode()
    world.says(1)
    world.queue(good.replace(line_user_id(1).encode(), b"\xff\xfe"))
    world.says(2)
    decoding = Queues(queue_module.connect(redis_url + "?decode_responses=True"))
    assert counts(drain(world.database_url, decoding)) == (3, 2, 0, 0, 1)
    assert (world.waiting(), len(world.dead())) == (0, 1)
    decoding.client.close()


def test_entries_of_every_malformed_kind_end_in_dead(world: World) -> None:
    world.queues.client.xadd(LAST_ACTIVITY, {"data": "{}"}, id="1-1")
    world.queue("x" * 70_000)
    world.queue(json.dumps(payload(line_user_id(1))), message_id="")
    world.queues.client.xadd(LAST_ACTIVITY, {"payload": json.dumps(payload("U"))}, id=f"{2**64 - 1}-1")
    assert counts(world.drain()) == (4, 0, 0, 0, 4)
    assert [letter.reason for letter in world.dead()] == ["bad_payload"] * 4


@pytest.mark.parametrize("step_entries", [1, 1000])
def test_s08_of_two_activities_in_a_batch_the_later_one_stays(world: World, step_entries: int) -> None:
    world.add(1)
    world.says(1, "message", when=at("2026-03-01T10:00:10"))
    world.says(1, "click", when=at("2026-03-01T10:00:20"))
    assert counts(world.drain(step_entries=step_entries)) == (2, 2, 0, 0, 0)
    assert world.row(1) == ("click", "active", "within_1_day", at("2026-03-01T10:00:20"))


def test_s09_a_late_activity_changes_none_of_the_four(world: World) -> None:
    row = ("message", "active", "within_7_days", NOON)
    world.add(1, row=row)
    world.says(1, "follow", when=NOON - timedelta(minutes=20), activityStatus="inactive")
    assert counts(world.drain()) == (1, 0, 1, 0, 0)
    assert world.row(1) == row
    assert world.waiting() == 0


def test_a_repeated_entry_changes_nothing(world: World) -> None:
    world.add(1)
    entry_id = world.says(1, "follow", when=NOON)
    world.drain()
    world.queue(json.dumps(payload(line_user_id(1), "click")), original_id=entry_id)
    assert counts(world.drain()) == (1, 0, 1, 0, 0)
    assert world.row(1) == ("follow", "active", "first", NOON)


def test_a_replayed_message_keeps_the_time_it_was_first_queued(world: World) -> None:
    world.says(1, "follow", when=NOON)
    world.connection.execute("ALTER TABLE line_user ADD CHECK (last_activity_type <> 'follow')")
    world.add(1)
    assert world.drain().buried == 1
    world.connection.execute("ALTER TABLE line_user DROP CONSTRAINT line_user_last_activity_type_check")
    world.queues.replay(LAST_ACTIVITY, forget=lambda _: None)
    assert counts(world.drain()) == (1, 1, 0, 0, 0)
    assert world.row(1) == ("follow", "active", "first", NOON)


def test_more_entries_in_a_millisecond_than_it_has_microseconds_share_the_last(world: World) -> None:
    world.add(1)
    for sequence, type_ in ((998, "one"), (999, "two"), (1_000, "three")):
        data = json.dumps(payload(line_user_id(1), type_))
        world.queues.client.xadd(LAST_ACTIVITY, {"payload": data}, id=f"1772366400000-{sequence}")
    # A later entry of the same instant can't be told from a repeated one: the first in order stays.
    assert counts(world.drain()) == (3, 2, 1, 0, 0)
    assert world.row(1) == ("two", "active", "within_1_day", at("2026-03-01T12:00:00.000999"))


def test_a_user_whom_no_row_knows_is_logged_counted_and_done(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add(1, oa=1, organization=2)
    first = world.says(1, organizationId=1)
    world.says(2)
    with caplog.at_level(logging.WARNING):
        assert counts(world.drain()) == (2, 0, 0, 2, 0)
    assert world.row(1) == NEVER
    assert (world.waiting(), world.dead()) == (0, [])
    (record,) = caplog.records
    assert first in record.message
    assert line_user_id(1) not in record.message


def test_the_same_person_has_a_row_in_each_oa(world: World) -> None:
    world.add(1, oa=1)
    world.add(1, oa=2, organization=5)
    world.says(1, "message", when=NOON, lineOaId=1)
    world.says(1, "click", when=NOON + timedelta(seconds=1), lineOaId=2, organizationId=5)
    assert counts(world.drain()) == (2, 2, 0, 0, 0)
    assert world.row(1, oa=1)[0] == "message"
    assert world.row(1, oa=2)[0] == "click"


def test_s11_updates_stay_within_their_page(world: World) -> None:
    world.connection.execute(
        """INSERT INTO line_user (organization_id, line_oa_id, line_user_id)
           SELECT 1, 1, 'U' || lpad(to_hex(n), 32, '0') FROM generate_series(1, 20000) n"""
    )
    chance = random.Random(11)
    for _ in range(8):
        people = chance.sample(range(1, 20_001), 500)
        world.queues.publish_many(
            LAST_ACTIVITY, [json.dumps(payload(line_user_id(number))) for number in people]
        )
        world.drain()
    world.connection.execute("SELECT pg_stat_force_next_flush()")
    found = world.connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'line_user'"
    ).fetchone()
    assert found is not None
    updated, hot = found
    assert updated == 4_000
    assert hot / updated >= 0.95


def test_a_message_that_the_table_cannot_take_is_found_and_buried(world: World) -> None:
    world.connection.execute("ALTER TABLE line_user ADD CONSTRAINT nice CHECK (last_activity_type <> 'ugly')")
    world.add(*range(1, 21))
    for number in range(1, 21):
        world.says(number, "fine", when=NOON + timedelta(seconds=number))
    bad = [world.says(number, "ugly") for number in (3, 17)]
    world.says(3, "later")
    assert counts(world.drain()) == (23, 21, 0, 0, 2)
    assert [letter.entry_id for letter in world.dead()] == bad
    letter = world.dead()[0]
    assert letter.reason == "internal_error"
    assert letter.error == "PostgreSQL refused the values: CheckViolation, SQLSTATE 23514, constraint nice"
    assert world.row(17) == ("fine", "active", "first", NOON + timedelta(seconds=17))
    assert world.row(3)[0] == "later"


def test_a_failure_that_lies_in_no_message_buries_none(world: World) -> None:
    world.add(1)
    world.says(1)
    world.connection.execute("ALTER TABLE line_user RENAME last_activity_period TO elsewhere")
    with pytest.raises(TransientFailure, match=r"PostgreSQL refuses .* UndefinedColumn"):
        world.drain()
    assert (world.waiting(), world.dead()) == (1, [])


def test_a_row_that_stays_locked_fails_the_run_and_keeps_the_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(update_module.SESSION, "lock_timeout", "100ms")
    world.add(1)
    world.says(1)
    with psycopg.connect(world.database_url) as other:
        other.execute("SELECT FROM line_user FOR UPDATE")
        with pytest.raises(TransientFailure, match="LockNotAvailable"):
            world.drain()
    assert world.waiting() == 1
    assert world.drain().updated == 1


def test_while_postgres_is_away_nothing_is_lost(world: World) -> None:
    world.says(1)
    away = world.database_url.rsplit("/", 1)[0] + "/nowhere"
    with pytest.raises(TransientFailure, match="PostgreSQL can't be reached") as outage:
        drain(away, world.queues)
    assert "\n" not in str(outage.value)
    assert world.waiting() == 1


def test_a_session_that_breaks_fails_the_run_and_keeps_the_messages(world: World) -> None:
    world.add(1)
    world.says(1)
    with update_module.connect(world.database_url) as connection:
        world.connection.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(TransientFailure, match="PostgreSQL went away"):
            drain_step(connection, world.queues)
    assert world.waiting() == 1
    assert counts(world.drain()) == (1, 1, 0, 0, 0)


def test_a_step_costs_few_statements_and_round_trips(world: World, redis_url: str) -> None:
    """Counted, not timed: messages of two OAs, half of the people cached, one copy replaced meanwhile."""
    for oa in (1, 2):
        world.add(*range(1, 51), oa=oa)
    for number in range(1, 26):
        world.cache(number, world.camel_copy(number))
    for number in range(500):
        world.says(number % 50 + 1)
        world.says(number % 50 + 1, lineOaId=2)
    statements: list[object] = []
    sends: list[object] = []

    class CountingCursor(psycopg.Cursor[tuple[object, ...]]):
        def execute(self, *arguments: Any, **keywords: Any) -> Any:
            statements.append(arguments[0])
            if len(statements) == 2:
                world.cache(1, world.camel_copy(1, name="new"))
            return super().execute(*arguments, **keywords)

    class CountingConnection(redis.Connection):
        def send_packed_command(self, *arguments: Any, **keywords: Any) -> Any:
            sends.append(arguments)
            return super().send_packed_command(*arguments, **keywords)  # type: ignore[no-untyped-call]

    client = queue_module.connect(redis_url)
    client.connection_pool.connection_class = CountingConnection
    client.ping()
    with update_module.connect(world.database_url) as connection:
        assert connection.autocommit
        connection.cursor_factory = CountingCursor
        sends.clear()
        result = drain_step(connection, Queues(client))
    client.close()
    assert counts(result) == (1_000, 1_000, 0, 0, 0)
    assert len(statements) == 3  # find the misses, move users of the one OA and of the other
    assert len(sends) == 5  # page, copies, renewal, renewal of the one that was replaced, done
    assert world.cached(1)["name"] == "new"
    assert world.cached(1)["lastActivityDate"] is not None


def test_a_drain_ends_at_its_time_though_traffic_flows_on(world: World) -> None:
    world.add(1)
    seconds = iter(range(100))

    def more(_: DrainResult) -> None:
        world.says(1)

    more(DrainResult())
    result = drain(
        world.database_url, world.queues, max_seconds=10, on_progress=more, clock=lambda: next(seconds)
    )
    assert 1 < result.read < 10
    assert world.waiting() == 1


def test_a_drain_waits_for_more_until_it_was_idle_long_enough(world: World) -> None:
    world.add(1)
    world.says(1)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if 20 < now < 20.05:
            world.says(1)

    result = drain(world.database_url, world.queues, idle_seconds=30, clock=lambda: now, sleep=sleep)
    assert result.read == 2
    assert now == pytest.approx(50, abs=1)


def test_the_numbers_of_a_drain_tell_speed_and_age(world: World) -> None:
    world.add(1)
    world.says(1, when=at("2026-01-01T00:00:00"))
    result = world.drain()
    assert result.seconds > 0
    assert result.messages_per_second == pytest.approx(1 / result.seconds)
    assert result.oldest_seconds > 86_400
    assert set(result.numbers()) == {
        *("read", "updated", "stale", "unknown", "buried"),
        *("seconds", "messages_per_second", "oldest_seconds"),
    }
    assert counts(world.drain()) == (0, 0, 0, 0, 0)
