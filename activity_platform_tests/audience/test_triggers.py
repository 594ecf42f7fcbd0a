"""Rules of audience membership: what fires for whom, once, and what the stream is told."""

from __future__ import annotations

import itertools
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activity_platform.audience import firings
from activity_platform.audience.triggers import check_rules, list_rules, parse_conditions
from activity_platform.gateways.queue import QueueAway
from activity_platform_tests.audience_world import World
from activity_platform_tests.simulated_line import user_ids

A, B, C, D = (f"U{letter * 32}" for letter in "abcd")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def add_user(world: World, line_user_id: str, **columns: Any) -> None:
    world.add_users([line_user_id], fresh=True)
    for name, value in columns.items():
        world.connection.execute(
            f"UPDATE line_user SET {name} = %s WHERE line_user_id = %s", [value, line_user_id]
        )


def stream(world: World) -> list[dict[str, Any]]:
    return [json.loads(entry.payload) for entry in world.services.queues.peek(firings.STREAM).entries]


def test_rules_fire_for_exactly_those_who_came_and_who_left(world: World) -> None:
    audience, other = world.add_audience(), world.add_audience()
    world.create(audience, [A, B])
    world.process()
    came, left = world.add_rule(audience, "added"), world.add_rule(audience, "removed")
    world.add_rule(other, "added")
    world.add_rule(audience, "added", enabled=False)
    world.update(audience, [B, C, D])
    world.process()
    assert world.firings() == [(came, C, "added"), (came, D, "added"), (left, A, "removed")]
    assert world.imports(audience)[-1]["stats"]["firings"] == 3


def test_every_command_fires(world: World) -> None:
    audience = world.add_audience()
    came, left = world.add_rule(audience, "added"), world.add_rule(audience, "removed")
    world.create(audience, [A])
    world.mookept(audience, [B], "add")
    world.mookept(audience, [A], "remove")
    world.delete(audience)
    world.process()
    assert world.firings() == [
        *((came, A, "added"), (came, B, "added")),
        *((left, A, "removed"), (left, B, "removed")),
    ]


def test_who_leaves_and_enters_again_fires_again(world: World) -> None:
    audience = world.add_audience()
    came = world.add_rule(audience, "added")
    for file in ([A, B], [B], [A, B]):
        world.update(audience, file)
    world.process()
    assert world.firings() == [(came, A, "added"), (came, B, "added"), (came, A, "added")]


@pytest.mark.parametrize(
    ("conditions", "matching"),
    [
        ({}, "abcd"),
        ({"language": ["th", "en"]}, "ab"),
        ({"language": ["TH"]}, ""),
        ({"activity_status": "active"}, "a"),
        ({"activity_status": "inactive"}, "b"),
        ({"activity_type": ["message", "click"]}, "ab"),
        ({"never_active": True}, "cd"),
        ({"never_active": False}, "ab"),
        ({"inactive_days": {"at_least": 10}}, "ab"),
        ({"inactive_days": {"at_least": 11}}, "b"),
        ({"inactive_days": {"at_most": 10}}, "a"),
        ({"inactive_days": {"at_most": 9}}, ""),
        ({"inactive_days": {"at_least": 0, "at_most": 40}}, "ab"),
        ({"language": ["th"], "activity_status": "inactive"}, ""),
        ({"never_active": True, "inactive_days": {"at_least": 0}}, ""),
    ],
)
def test_all_conditions_must_hold(world: World, conditions: Any, matching: str) -> None:
    def ago(**time: int) -> datetime:
        return datetime.now(UTC) - timedelta(**time)

    active = {"last_activity_type": "message", "last_activity_status": "active"}
    quiet = {"last_activity_type": "click", "last_activity_status": "inactive"}
    add_user(world, A, language="th", last_activity_date=ago(days=10, hours=23), **active)
    add_user(world, B, language="en", last_activity_date=ago(days=40, hours=1), **quiet)
    add_user(world, C, language="ja")
    add_user(world, D)
    audience = world.add_audience()
    rule = world.add_rule(audience, "added", conditions)
    world.create(audience, [A, B, C, D])
    world.process()
    assert [user[1] for fired, user, _ in world.firings() if fired == rule] == list(matching)
    (check,) = check_rules(world.connection, now=datetime.now(UTC))
    assert (check.matches, check.problem) == (len(matching), None)


def test_an_activity_at_no_finite_time_counts_no_days(world: World) -> None:
    add_user(world, A, last_activity_date="infinity")
    audience = world.add_audience()
    world.add_rule(audience, "added", {"inactive_days": {"at_least": 0}})
    world.create(audience, [A])
    assert [result.status for result in world.process()] == ["done"]
    assert world.firings() == []


BAD_CONDITIONS: list[Any] = [
    [],
    "text",
    1,
    {"languages": ["th"]},
    {"language": "th"},
    {"language": []},
    {"language": [1]},
    {"language": None},
    {"activity_status": "ACTIVE"},
    {"activity_status": ["active"]},
    {"activity_type": "message"},
    {"never_active": 1},
    {"never_active": "true"},
    {"inactive_days": 3},
    {"inactive_days": {}},
    {"inactive_days": {"at_least": "3"}},
    {"inactive_days": {"at_least": 1.5}},
    {"inactive_days": {"at_least": -1}},
    {"inactive_days": {"at_least": True}},
    {"inactive_days": {"at_least": 10**30}},
    {"inactive_days": {"at_least": 1, "more": 2}},
]


def test_a_bad_rule_fires_nothing_and_is_shown_and_the_others_work(world: World) -> None:
    audience = world.add_audience()
    bad = [world.add_rule(audience, "added", conditions) for conditions in BAD_CONDITIONS]
    deep = world.add_rule(audience, "added", json.loads("[" * 900 + "]" * 900))
    good = world.add_rule(audience, "added")
    kind = world.add_rule(audience, "added", kind="something_else")
    foreign = world.add_rule(audience, "added", line_oa_id=world.add_oa("other"))
    lost = world.add_rule(999, "added")
    world.create(audience, [A])
    world.process()
    assert world.firings() == [(good, A, "added")]
    listed = {rule.id: rule for rule in list_rules(world.connection)}
    assert {rule.id for rule in listed.values() if rule.problem} == {*bad, deep, kind, foreign, lost}
    assert (listed[good].firings, listed[good].unpublished) == (1, 0)
    checked = {rule.id: rule for rule in check_rules(world.connection, now=NOW)}
    assert {one: rule.problem for one, rule in checked.items()} == {
        one: rule.problem for one, rule in listed.items()
    }
    assert checked[good].matches == 1
    assert "languages" in str(listed[bad[3]].problem)


def test_conditions_with_a_whole_float_are_no_days() -> None:
    with pytest.raises(ValueError, match="at_least"):
        parse_conditions('{"inactive_days": {"at_least": 3.0}}')


def test_the_stream_is_told_once_and_the_firing_is_marked(world: World) -> None:
    audience = world.add_audience()
    rule = world.add_rule(audience, "added")
    world.create(audience, [A], message_id="m1")
    world.process()
    (payload,) = stream(world)
    fired = datetime.fromisoformat(payload.pop("firedAt"))
    assert fired.tzinfo is not None
    assert payload == {
        "firingId": 1,
        "ruleId": rule,
        "audienceId": audience,
        "lineOaId": world.line_oa_id,
        "organizationId": world.organization_id,
        "lineUserId": A,
        "event": "added",
        "messageId": "m1",
    }
    ((at, published),) = world.connection.execute("SELECT fired_at, published_at FROM trigger_firing")
    assert at == fired
    assert published is not None


def test_a_full_stream_is_left_alone_and_the_rest_is_sent_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firings, "MOST_WAITING", 5)
    monkeypatch.setattr(firings, "BATCH", 2)
    audience = world.add_audience()
    world.add_users(user_ids(8), fresh=True)
    world.add_rule(audience, "added")
    world.create(audience, user_ids(8))
    world.process()
    assert len(stream(world)) == 5
    waiting = firings.unpublished(world.connection, now=datetime.now(UTC))
    assert waiting.count == 3
    assert waiting.oldest_seconds > 0
    world.services.queues.client.delete(firings.STREAM)
    result = firings.publish_firings(world.connection, now=NOW, stream=world.services.queues)
    assert result == firings.Published(published=3)
    assert [one["firingId"] for one in stream(world)] == [6, 7, 8]


def test_a_firing_of_an_erased_user_is_not_sent_and_holds_nothing_up(world: World) -> None:
    audience = world.add_audience()
    world.add_rule(audience, "added")
    world.create(audience, [A, B])
    world.process()
    world.services.queues.client.delete(firings.STREAM)
    world.connection.execute("UPDATE trigger_firing SET published_at = NULL")
    world.connection.execute("DELETE FROM line_user WHERE line_user_id = %s", [A])
    result = firings.publish_firings(world.connection, now=NOW, stream=world.services.queues)
    assert result == firings.Published(published=1, dropped=1)
    assert [one["lineUserId"] for one in stream(world)] == [B]
    assert firings.unpublished(world.connection, now=NOW) == firings.Unpublished(0, 0.0)


class Broken:
    """A stream that takes a batch and breaks off before it says so."""

    def __init__(self, world: World) -> None:
        self._queues = world.services.queues

    def depth(self, queue: str, /) -> int:
        return self._queues.depth(queue)

    def publish_many(self, queue: str, payloads: Any, /) -> int:
        self._queues.publish_many(queue, payloads)
        raise QueueAway("broke off")


def test_what_was_sent_but_not_marked_is_sent_again_under_the_same_id(world: World) -> None:
    audience = world.add_audience()
    world.add_rule(audience, "added")
    world.create(audience, [A, B])
    world.process()
    world.services.queues.client.delete(firings.STREAM)
    world.connection.execute("UPDATE trigger_firing SET published_at = NULL")
    with pytest.raises(QueueAway):
        firings.publish_firings(world.connection, now=NOW, stream=Broken(world))
    assert firings.unpublished(world.connection, now=NOW).count == 2
    firings.publish_firings(world.connection, now=NOW, stream=world.services.queues)
    assert [one["firingId"] for one in stream(world)] == [1, 2, 1, 2]


@pytest.mark.heavy
def test_three_hundred_thousand_changes_under_twenty_rules_are_evaluated_in_ten_seconds(world: World) -> None:
    evaluated_in(world, added=200_000, removed=100_000, seconds=10)


def test_thousands_of_changes_under_twenty_rules_are_evaluated_at_once(world: World) -> None:
    evaluated_in(world, added=2_000, removed=1_000, seconds=2)


def evaluated_in(world: World, *, added: int, removed: int, seconds: float) -> None:
    """Twenty rules, ten for each event, and every tenth user speaks the language of one of them."""
    audience = world.add_audience()
    world.connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id, language, audience_ids)"
        " SELECT %(organization)s, %(oa)s, 'U' || md5(i::text),"
        " CASE WHEN i %% 10 = 0 THEN 'l' || i / 10 %% 10 END,"
        " CASE WHEN i > %(added)s THEN ARRAY[%(audience)s]::bigint[] ELSE '{}' END"
        " FROM generate_series(1, %(added)s + %(removed)s) AS i",
        {
            "organization": world.organization_id,
            "oa": world.line_oa_id,
            "audience": audience,
            "added": added,
            "removed": removed,
        },
    )
    world.connection.execute("UPDATE line_user SET profile_fetched_at = now()")
    world.connection.execute("VACUUM ANALYZE line_user")
    for event, number in itertools.product(("added", "removed"), range(10)):
        world.add_rule(audience, event, {"language": [f"l{number}"]})
    file = world.connection.execute("SELECT line_user_id FROM line_user WHERE audience_ids = '{}'")
    took: list[float] = []
    evaluate = world.services.evaluate

    def timed(*arguments: Any, **more: Any) -> int:
        started = time.monotonic()
        fired = evaluate(*arguments, **more)
        took.append(time.monotonic() - started)
        return fired

    object.__setattr__(world.services, "evaluate", timed)
    world.update(audience, [row[0] for row in file])
    (result,) = world.process()
    assert result.stats["firings"] == (added + removed) // 10
    per_rule = world.connection.execute("SELECT count(*) FROM trigger_firing GROUP BY rule_id").fetchall()
    assert sorted(per_rule) == sorted([(added // 100,)] * 10 + [(removed // 100,)] * 10)
    assert took[0] < seconds
