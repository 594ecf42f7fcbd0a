"""The cached copy of a row: a hint when reading, kept true when the row moves, never made."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest

from activity_platform.gateways.user_cache import UserCache
from activity_platform.last_activity.cached_users import UserRow, renew, renewed, row_id_in
from activity_platform.last_activity.messages import UserKey
from activity_platform_tests.last_activity.conftest import NEVER, World, at, counts, line_user_id

NOON = at("2026-03-01T12:00:00")
KEY = UserKey(1, 1, line_user_id(1))
ROW = UserRow(KEY, "click", "active", "first", NOON)


def test_s12_the_gap_is_taken_from_the_row_and_the_copy_follows(world: World) -> None:
    world.add(1, row=("message", "active", "first", at("2026-03-01T00:00:00")))
    world.cache(1, world.camel_copy(1, lastActivityDate="2026-01-01T00:00:00Z", displayName="Nok"))
    world.says(1, "click", when=at("2026-03-01T00:05:00"))
    world.drain()
    assert world.row(1) == ("click", "active", "within_1_day", at("2026-03-01T00:05:00"))
    assert world.cached(1) == world.camel_copy(
        1,
        lastActivityDate="2026-03-01T00:05:00Z",
        displayName="Nok",
        lastActivityType="click",
        lastActivityStatus="active",
        lastActivityPeriod="within_1_day",
    )


def test_s12_a_miss_makes_no_copy(world: World) -> None:
    world.add(1)
    world.says(1)
    world.drain()
    assert world.row(1) != NEVER
    assert world.cached(1) is None


def test_s13_a_date_without_offset_is_utc_wherever_the_worker_stands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Bangkok")
    time.tzset()
    try:
        world.add(1, 2, row=("message", "active", "first", at("2026-03-01T10:00:00")))
        world.cache(1, world.camel_copy(1, lastActivityDate="2026-03-01T10:00:00"))
        world.cache(2, world.camel_copy(2, lastActivityDate="2026-03-01T10:06:00"))
        for number in (1, 2):
            world.says(number, when=at("2026-03-01T10:05:00") + timedelta(microseconds=number))
        world.drain()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert world.row(1) == ("message", "active", "within_1_day", at("2026-03-01T10:05:00.000001"))
    assert world.cached(1)["lastActivityDate"] == "2026-03-01T10:05:00.000001Z"
    assert world.cached(2)["lastActivityDate"] == "2026-03-01T10:06:00"  # newer already: left alone


def test_a_copy_keeps_its_spelling_its_other_values_and_its_time_to_live(world: World) -> None:
    world.add(1)
    row = world.row_id(1)
    copy = (
        f'{{"id":"{row}", "organization_id":1,"line_oa_id":1,"big":9007199254740993123,"float":1.10,'
        '"audience_ids":[],"nested":{"a": 1},"name":"\\u0e01","last_activity_type":null}'
    )
    world.cache(1, copy, seconds=1_000)
    world.says(1, "click", when=NOON)
    assert world.drain().updated == 1
    raw: Any = world.queues.client.get(f"LINE_USER:{line_user_id(1)}")
    for piece in ('"big":9007199254740993123', '"float":1.10', '"audience_ids":[]', '{"a": 1}', "\\u0e01"):
        assert piece.encode() in raw
    assert json.loads(raw) == json.loads(copy) | {
        "last_activity_type": "click",
        "last_activity_status": "active",
        "last_activity_period": "first",
        "last_activity_date": "2026-03-01T12:00:00Z",
    }
    ttl: Any = world.queues.client.ttl(f"LINE_USER:{line_user_id(1)}")
    assert 900 < ttl <= 1_000


def test_a_copy_without_time_to_live_stays_so(world: World) -> None:
    world.add(1)
    world.queues.client.set(f"LINE_USER:{line_user_id(1)}", json.dumps(world.camel_copy(1)))
    world.says(1)
    world.drain()
    assert world.cached(1)["lastActivityType"] == "message"
    assert world.queues.client.ttl(f"LINE_USER:{line_user_id(1)}") == -1


@pytest.mark.parametrize("other", [{"lineOaId": 2}, {"organizationId": 2}])
def test_a_copy_of_another_oa_or_organization_is_a_miss_and_is_left_alone(
    world: World, other: dict[str, int]
) -> None:
    world.add(1, 2)
    copy = world.camel_copy(1) | other | {"id": world.row_id(2)}
    world.cache(1, copy)
    world.says(1)
    assert world.drain().updated == 1
    assert world.row(1) != NEVER
    assert world.row(2) == NEVER
    assert world.cached(1) == copy


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"\xff\xfe", b"[]", b"null", b"{}", b'{"id":1}', b"[" * 50_000, b'{"id":"x"}']
)
def test_garbage_is_a_miss_and_is_left_alone(world: World, garbage: bytes) -> None:
    world.add(1)
    world.cache(1, garbage)
    world.says(1)
    assert world.drain().updated == 1
    assert world.queues.client.get(f"LINE_USER:{line_user_id(1)}") == garbage


def test_a_key_that_holds_no_text_is_a_miss(world: World) -> None:
    world.add(1)
    world.queues.client.hset(f"LINE_USER:{line_user_id(1)}", "id", "1")
    world.says(1)
    assert world.drain().updated == 1


def test_an_id_that_matches_no_row_of_the_user_is_looked_up_again(world: World) -> None:
    world.add(1, 2, 3)
    world.cache(1, world.camel_copy(1, id=world.row_id(2)))  # somebody else's row
    world.cache(3, world.camel_copy(3, id=10**9))  # nobody's
    world.cache(4, world.camel_copy(3, id=10**9, lineUserId=line_user_id(4)))
    for number in (1, 3, 4):
        world.says(number)
    assert counts(world.drain()) == (3, 2, 0, 1, 0)
    assert world.row(2) == NEVER
    assert world.row(1) != NEVER != world.row(3)


def test_two_people_whose_copies_name_one_row_each_get_their_own(world: World) -> None:
    world.add(1, 2)
    for number in (1, 2):
        world.cache(number, world.camel_copy(number, id=world.row_id(2)))
    for order in ((1, 2), (2, 1)):
        for number in order:
            world.says(number, f"by {number}, {order}")
        assert counts(world.drain()) == (2, 2, 0, 0, 0)
        assert [world.row(number)[0] for number in (1, 2)] == [f"by 1, {order}", f"by 2, {order}"]


def test_a_copy_left_behind_by_a_crash_is_renewed_when_the_entry_comes_again(world: World) -> None:
    world.add(1, row=("click", "active", "first", NOON))
    world.cache(1, world.camel_copy(1, lastActivityDate="2026-01-01T00:00:00Z"))
    world.says(1, "click", when=NOON)
    assert counts(world.drain()) == (1, 0, 1, 0, 0)
    assert world.cached(1)["lastActivityDate"] == "2026-03-01T12:00:00Z"
    assert world.cached(1)["lastActivityType"] == "click"


def test_a_copy_that_is_replaced_meanwhile_is_renewed_from_what_is_there(world: World) -> None:
    read_before = json.dumps({"id": 1, "organizationId": 1, "lineOaId": 1, "name": "old"}).encode()
    world.cache(1, {"id": 1, "organizationId": 1, "lineOaId": 1, "name": "new"})
    renew(UserCache(world.queues.client), [ROW], {line_user_id(1): read_before})
    assert (world.cached(1)["name"], world.cached(1)["lastActivityType"]) == ("new", "click")


def test_a_copy_that_somebody_deleted_meanwhile_is_not_made_again(world: World) -> None:
    read_before = json.dumps({"id": 1, "organizationId": 1, "lineOaId": 1}).encode()
    renew(UserCache(world.queues.client), [ROW], {line_user_id(1): read_before})
    assert world.cached(1) is None


def test_a_copy_that_never_stands_still_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read_before = json.dumps({"id": 1, "organizationId": 1, "lineOaId": 1}).encode()
    real = UserCache.replace

    def restless(cache: UserCache, *arguments: Any, last: bool) -> dict[str, bytes]:
        world.cache(1, {"id": 1, "organizationId": 1, "lineOaId": 1, "last": last})
        return real(cache, *arguments, last=last)

    monkeypatch.setattr(UserCache, "replace", restless)
    renew(UserCache(world.queues.client), [ROW], {line_user_id(1): read_before})
    assert world.cached(1) is None


def test_a_copy_with_an_unreadable_date_gets_the_rows() -> None:
    dates: list[Any] = ["yesterday", 12, None, {}, "", "0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00"]
    for date in dates:
        copy = json.dumps({"organizationId": 1, "lineOaId": 1, "lastActivityDate": date}).encode()
        new = renewed(copy, ROW)
        assert new is not None
        assert json.loads(new)["lastActivityDate"] == "2026-03-01T12:00:00Z"


def test_a_copy_names_its_row_in_either_spelling() -> None:
    assert row_id_in(b'{"id":5,"organizationId":1,"lineOaId":"1"}', KEY) == 5
    assert row_id_in(b'{"id":"5","organization_id":"1","line_oa_id":1}', KEY) == 5
    for copy in (b'{"id":5,"organizationId":1}', b'{"id":0,"organizationId":1,"lineOaId":1}', b'{"id":null}'):
        assert row_id_in(copy, KEY) is None
