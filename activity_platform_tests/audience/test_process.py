"""The four commands, from the message to the rows, the files and the history."""

from __future__ import annotations

import pytest

from activity_platform_tests.audience_world import World
from activity_platform_tests.simulated_line import SimulatedLine, user_ids

A, B, C, D, E, F = (f"U{letter * 32}" for letter in "abcdef")


def test_create_makes_members_of_everyone_in_the_file(world: World) -> None:
    audience = world.add_audience({"color": "red"})
    world.create(audience, [B, A, "Uwrong", A])
    (result,) = world.process()
    assert (result.status, result.reason, result.attempts) == ("done", None, 1)
    world.assert_consistent(audience, [A, B])
    info = world.info(audience)
    assert info["filePath"].startswith(f"private/{world.hash}/audience/audience-{audience}-")
    assert info | {"filePath": ""} == {
        "color": "red",
        "total": 4,
        "valid": 2,
        "invalid": 1,
        "duplicates": 1,
        "unreachable": 0,
        "unresolved": 0,
        "members": 2,
        "added": 2,
        "removed": 0,
        "filePath": "",
    }
    assert world.rejects(audience) == ["4,Uwrong,malformed"]
    (row,) = world.imports(audience)
    assert (row["command"], row["status"], row["reason"]) == ("create", "done", None)
    assert row["result_path"] == info["filePath"]
    assert row["stats"]["members"] == 2
    assert world.services.queues.depth("create_audience") == 0


def test_update_replaces_and_the_difference_is_exact(world: World) -> None:
    audience, other = world.add_audience(), world.add_audience()
    world.create(other, [A, C])
    world.create(audience, [A, B, C])
    world.update(audience, [B, C, D])
    assert {result.status for result in world.process()} == {"done"}
    world.assert_consistent(audience, [B, C, D])
    world.assert_consistent(other, [A, C])
    assert (world.info(audience)["added"], world.info(audience)["removed"]) == (1, 1)


def test_delete_clears_the_members_and_writes_an_empty_file(world: World) -> None:
    audience, other = world.add_audience({"color": "red"}), world.add_audience()
    world.create(audience, [A, B])
    world.create(other, [A])
    world.delete(audience)
    world.process()
    world.assert_consistent(audience, [])
    world.assert_consistent(other, [A])
    info = world.info(audience)
    assert (info["color"], info["total"], info["removed"]) == ("red", 2, 2)
    ((deleted,),) = world.connection.execute(
        "SELECT deleted_at IS NOT NULL FROM audience WHERE id = %s", [audience]
    )
    assert deleted


@pytest.mark.parametrize("command", ["create", "update", "delete", "mookept"])
def test_after_a_delete_every_command_is_a_recorded_no_op(world: World, command: str) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B])
    world.delete(audience)
    world.process()
    before = world.info(audience)
    more = {"actionType": "add"} if command == "mookept" else {}
    world.send(f"{command}_audience", audience, [C], **more)
    (result,) = world.process()
    assert (result.status, result.reason) == ("skipped", "audience_deleted")
    row = world.imports(audience)[-1]
    assert (row["status"], row["reason"], row["result_path"]) == ("skipped", "audience_deleted", None)
    assert row["finished_at"] is not None
    assert world.info(audience) == before
    world.assert_consistent(audience, [])
    assert world.dead(f"{command}_audience") == []


def test_s20_mookept_add_comes_on_top(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.create(audience, [A, B, C, "Uwrong"])
    world.process()
    world.mookept(audience, [B, D, "Ubad", "Uworse"], "add")
    (result,) = world.process()
    world.assert_consistent(audience, [A, B, C, D])
    info = world.info(audience)
    assert (info["members"], info["added"], info["removed"]) == (4, 1, 0)
    assert (info["total"], info["valid"], info["invalid"], info["duplicates"]) == (4, 3, 1, 0)
    assert (result.command, result.stats["alreadyPresent"]) == ("mookept_add", 1)
    assert (result.stats["total"], result.stats["invalid"]) == (4, 2)


@pytest.mark.parametrize("action", ["remove", "delete", "ADD"])
def test_mookept_with_another_action_removes_without_asking_line(
    world: World, line: SimulatedLine, action: str
) -> None:
    audience, other = world.add_audience(), world.add_audience()
    world.create(audience, [A, B, C])
    world.create(other, [B])
    world.process()
    asked = line.log()["requests"]
    world.connection.execute("UPDATE line_oa SET channel_access_token = NULL")
    world.mookept(audience, [B, D, "Ubad"], action)
    (result,) = world.process()
    assert (result.status, result.command) == ("done", "mookept_remove")
    world.assert_consistent(audience, [A, C])
    world.assert_consistent(other, [B])
    assert world.info(audience)["total"] == 3
    assert (world.info(audience)["added"], world.info(audience)["removed"]) == (0, 1)
    assert line.log()["requests"] == asked
    assert world.rejects(audience) == ["4,Ubad,malformed"]


@pytest.mark.parametrize("action", ["add", "remove"])
def test_mookept_with_an_empty_file_changes_nothing(world: World, action: str) -> None:
    audience = world.add_audience()
    world.create(audience, [A])
    world.mookept(audience, b"", action)
    assert [result.status for result in world.process()] == ["done", "done"]
    world.assert_consistent(audience, [A])


def test_s07_create_with_an_empty_file_ends_done_with_zeros(world: World) -> None:
    for content in (b"", b"Line UserID\n"):
        audience = world.add_audience()
        world.create(audience, content)
        (result,) = world.process()
        assert (result.status, result.reason) == ("done", None)
        world.assert_consistent(audience, [])
        info = world.info(audience)
        assert [info[name] for name in ("total", "valid", "invalid", "duplicates", "members")] == [0] * 5


@pytest.mark.parametrize("content", [b"", b"Line UserID\n", b"nonsense\n"])
def test_s07_update_with_an_empty_file_is_refused_at_once(world: World, content: bytes) -> None:
    audience = world.add_audience()
    rule = world.add_rule(audience, "removed")
    world.create(audience, [A, B])
    world.process()
    before = world.info(audience)
    world.update(audience, content)
    (result,) = world.process()
    assert (result.status, result.reason, result.attempts) == ("failed", "empty_file", 1)
    (letter,) = world.dead("update_audience")
    assert (letter.reason, letter.attempts) == ("empty_file", 1)
    assert world.imports(audience)[-1]["reason"] == "empty_file"
    assert world.info(audience) == before
    world.assert_consistent(audience, [A, B])
    assert rule not in {fired for fired, _, _ in world.firings()}


def test_s06_a_workbook_is_refused_without_a_call_to_line(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience({"filePath": "old.csv"})
    for magic in (b"PK\x03\x04" + b"xl/workbook" * 9, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 9):
        world.create(audience, magic)
        (result,) = world.process()
        assert (result.status, result.reason) == ("failed", "unsupported_format")
        assert world.imports(audience)[-1]["reason"] == "unsupported_format"
    assert world.info(audience) == {"filePath": "old.csv"}
    assert line.log()["requests"] == 0


def test_s10_a_key_is_taken_literally(world: World) -> None:
    audience = world.add_audience()
    path = f"private/{world.hash}/upload/ราย ชื่อ+1 (2).csv"
    world.upload([A], path)
    world.send("create_audience", audience, filePath=path)
    world.process()
    world.assert_consistent(audience, [A])
    world.upload([B], f"private/{world.hash}/a%20b%2B.csv")
    bucket = world.store.locate("x").bucket
    world.send("update_audience", audience, filePath=f"s3://{bucket}/private/{world.hash}/a%20b%2B.csv")
    world.process()
    world.assert_consistent(audience, [B])
    world.send("update_audience", audience, filePath=path.replace(" ", "%20"))
    assert world.process()[-1].reason == "file_not_found"


def test_s11_a_missing_file_is_tried_again_and_then_buried(world: World) -> None:
    audience = world.add_audience({"color": "red"})
    world.send("create_audience", audience, filePath="not/there.csv")
    results = world.process()
    assert [(one.status, one.reason) for one in results] == [
        *[("waiting", "file_not_found")] * 2,
        ("failed", "file_not_found"),
    ]
    (letter,) = world.dead("create_audience")
    assert (letter.reason, letter.attempts) == ("file_not_found", 3)
    assert world.info(audience) == {"color": "red"}
    (row,) = world.imports(audience)
    assert (row["status"], row["reason"], row["result_path"]) == ("failed", "file_not_found", None)


def test_s12_who_line_does_not_know_is_unreachable_but_valid(world: World, line: SimulatedLine) -> None:
    line.answer("not_found", ids=[B])
    line.answer("invalid_id", ids=[C])
    audience = world.add_audience()
    world.create(audience, [A, B, C])
    (result,) = world.process()
    assert result.status == "done"
    world.assert_consistent(audience, [A])
    info = world.info(audience)
    assert (info["total"], info["valid"], info["invalid"], info["unreachable"]) == (3, 3, 0, 2)
    assert line.log()["ids"] == {A: 1, B: 1, C: 1}
    assert world.rejects(audience) == [f"3,{B},unreachable", f"4,{C},unreachable"]


def test_a_404_does_not_remove_a_known_member(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.add_users([A, B], [audience])
    line.answer("not_found", ids=[A])
    world.update(audience, [A, B])
    world.process()
    world.assert_consistent(audience, [A, B])
    assert (world.info(audience)["unreachable"], world.info(audience)["removed"]) == (1, 0)


def test_an_update_of_which_nobody_is_known_changes_nothing(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.create(audience, [A])
    world.process()
    line.answer("not_found", ids=[B, C])
    world.update(audience, [B, C])
    (result,) = world.process()
    assert (result.status, result.reason, result.attempts) == ("failed", "no_known_member", 1)
    world.assert_consistent(audience, [A])


def test_a_create_of_which_nobody_is_known_is_done_with_no_member(world: World, line: SimulatedLine) -> None:
    line.answer("not_found")
    audience = world.add_audience()
    world.create(audience, [A, B])
    assert [result.status for result in world.process()] == ["done"]
    world.assert_consistent(audience, [])


def test_unresolved_ids_are_tried_again_and_the_last_attempt_is_partial(
    world: World, line: SimulatedLine
) -> None:
    line.answer({"status": 500}, ids=[B, C])
    audience = world.add_audience()
    world.add_users([C])
    world.create(audience, [A, B, C])
    results = world.process()
    assert [(one.status, one.reason) for one in results] == [
        *[("waiting", "unresolved_profiles")] * 2,
        ("partial", "unresolved_profiles"),
    ]
    world.assert_consistent(audience, [A, C])
    info = world.info(audience)
    assert (info["valid"], info["unresolved"], info["unreachable"]) == (3, 2, 0)
    assert world.rejects(audience) == [f"3,{B},unresolved", f"4,{C},unresolved"]
    (row,) = world.imports(audience)
    assert (row["status"], row["reason"]) == ("partial", "unresolved_profiles")
    assert world.dead("create_audience") == []
    assert line.log()["ids"][A] == 1


def test_an_update_about_which_line_says_nothing_fails_in_the_end(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.add_users([A, B, C], [audience])
    line.answer({"status": 503})
    world.update(audience, [A, B])
    results = world.process()
    assert [(one.status, one.reason) for one in results] == [
        *[("waiting", "line_unavailable")] * 2,
        ("failed", "line_unavailable"),
    ]
    assert world.members(audience) == [A, B, C]
    assert world.info(audience) is None
    assert world.count("audience_change") == 0


def test_s15_a_lapsed_token_costs_nothing(world: World, line: SimulatedLine) -> None:
    ids = user_ids(100)
    audience = world.add_audience({"color": "red"})
    world.add_users(ids, [audience])
    world.add_rule(audience, "removed")
    line.answer("unauthorized", ids=ids[40:])
    world.update(audience, ids)
    results = world.process()
    assert [(one.status, one.reason) for one in results][-1] == ("failed", "not_authorized")
    assert len(results) == 3
    assert world.members(audience) == sorted(ids)
    assert world.info(audience) == {"color": "red"}
    assert world.firings() == []


def test_s15_a_token_renewed_meanwhile_is_tried_once(world: World, line: SimulatedLine) -> None:
    line.answer("unauthorized", token="old")
    world.connection.execute("UPDATE line_oa SET channel_access_token = 'old'")
    seen: list[str] = []
    find_oa = world.services.find_oa

    def find(*arguments: object) -> object:
        found = find_oa(*arguments)  # type: ignore[arg-type]
        if line.log()["requests"]:
            world.connection.execute("UPDATE line_oa SET channel_access_token = 'new'")
            found = find_oa(*arguments)  # type: ignore[arg-type]
        return found

    object.__setattr__(world.services, "find_oa", find)
    audience = world.add_audience()
    world.create(audience, [A, B])
    (result,) = world.process()
    assert (result.status, result.attempts) == ("done", 1)
    world.assert_consistent(audience, [A, B])
    assert seen == []


@pytest.mark.parametrize("token", [None, "", "  "])
def test_an_oa_without_a_token_buries_at_once(world: World, token: str | None) -> None:
    world.connection.execute("UPDATE line_oa SET channel_access_token = %s", [token])
    audience = world.add_audience()
    world.create(audience, [A])
    (result,) = world.process()
    assert (result.status, result.reason, result.attempts) == ("failed", "no_channel_token", 1)
    assert world.imports(audience)[0]["reason"] == "no_channel_token"


def test_s16_a_missing_picture_clears_and_a_missing_language_keeps(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.add_users([A], [audience])
    world.connection.execute(
        "UPDATE line_user SET picture_url = 'https://p/1', status_message = 'hi', language = 'th',"
        " display_name = 'old', last_activity_type = 'message'"
    )
    line.answer({"profile": {"displayName": "X"}}, ids=[A])
    world.create(audience, [A])
    world.process()
    user = world.user(A)
    assert (user["display_name"], user["picture_url"], user["status_message"]) == ("X", None, None)
    assert (user["language"], user["last_activity_type"]) == ("th", "message")
    assert user["profile_fetched_at"] is not None


def test_s17_info_that_others_write_meanwhile_stays(world: World) -> None:
    audience = world.add_audience({"color": "red"})
    evaluate = world.services.evaluate

    def note_first(*arguments: object, **more: object) -> int:
        world.connection.execute(
            'UPDATE audience SET info = info || \'{"note": "x"}\' WHERE id = %s', [audience]
        )
        return evaluate(*arguments, **more)  # type: ignore[arg-type]

    object.__setattr__(world.services, "evaluate", note_first)
    world.create(audience, [A])
    world.process()
    info = world.info(audience)
    assert (info["color"], info["note"], info["total"], info["valid"], info["invalid"]) == (
        "red",
        "x",
        1,
        1,
        0,
    )


@pytest.mark.parametrize("info", [None, [], "text"])
def test_s17_statistics_come_into_an_info_that_is_no_object(world: World, info: object) -> None:
    audience = world.add_audience(info)
    world.create(audience, [A])
    world.process()
    assert world.info(audience)["total"] == 1


def test_s18_a_message_that_is_delivered_twice_is_done_once(world: World) -> None:
    audience = world.add_audience()
    world.add_rule(audience, "added")
    for _ in range(2):
        world.create(audience, [A, B], message_id="twice")
    assert [result.status for result in world.process()] == ["done", "repeated"]
    world.assert_consistent(audience, [A, B])
    assert len(world.firings()) == 2
    assert [tuple(world.user(one)["audience_ids"]) for one in (A, B)] == [(audience,)] * 2
    assert len(world.imports(audience)) == 1


def test_s19_an_unchanged_import_changes_and_fires_nothing(world: World) -> None:
    audience, other = world.add_audience(), world.add_audience()
    world.create(other, [A])
    world.create(audience, [A, B])
    world.process()
    for event in ("added", "removed"):
        world.add_rule(audience, event)
    world.update(audience, [B, A, B, B])
    world.process()
    assert (world.info(audience)["added"], world.info(audience)["removed"]) == (0, 0)
    assert world.firings() == []
    world.assert_consistent(audience, [A, B])
    world.assert_consistent(other, [A])


def test_fresh_profiles_are_not_asked_for_again(world: World, line: SimulatedLine) -> None:
    audience = world.add_audience()
    world.add_users([A], fresh=True)
    world.create(audience, [A, B])
    world.process()
    assert line.log()["ids"] == {B: 1}
    world.assert_consistent(audience, [A, B])


def test_cached_copies_of_changed_users_are_dropped(world: World) -> None:
    audience = world.add_audience()
    world.add_users([A, B, C], fresh=True)
    for user in (A, B, C):
        world.services.queues.client.set(f"LINE_USER:{user}", "{}")
    world.create(audience, [A, B])
    world.process()
    assert world.services.queues.client.keys("LINE_USER:*") == [f"LINE_USER:{C}".encode()]


def test_a_user_of_another_oa_is_no_member(world: World) -> None:
    audience = world.add_audience()
    other_oa = world.add_oa("other")
    world.connection.execute(
        "INSERT INTO line_user (organization_id, line_oa_id, line_user_id) VALUES (5, %s, %s)", [other_oa, A]
    )
    world.create(audience, [A])
    world.process()
    world.assert_consistent(audience, [A])
    rows = world.connection.execute("SELECT line_oa_id, audience_ids FROM line_user ORDER BY line_oa_id")
    assert rows.fetchall() == [(world.line_oa_id, [audience]), (other_oa, [])]


@pytest.mark.parametrize("wrong", ["audienceId", "lineOaId", "organizationId"])
def test_an_audience_that_is_not_there_is_waited_for_and_then_buried(world: World, wrong: str) -> None:
    audience = world.add_audience()
    world.create(audience, [A], **{wrong: 999})
    results = world.process()
    assert [(one.status, one.reason) for one in results] == [
        *[("waiting", "unknown_audience")] * 2,
        ("failed", "unknown_audience"),
    ]
    (letter,) = world.dead("create_audience")
    assert (letter.reason, letter.attempts) == ("unknown_audience", 3)
    assert world.count("audience_import") == 0


def test_an_oa_that_is_not_there_is_waited_for_and_then_buried(world: World) -> None:
    audience = world.add_audience()
    world.connection.execute("DELETE FROM line_oa")
    world.create(audience, [A])
    assert [one.reason for one in world.process()] == ["unknown_oa"] * 3
    (row,) = world.imports(audience)
    assert (row["status"], row["reason"]) == ("failed", "unknown_oa")


def test_bad_payloads_are_buried_at_once_and_hold_nobody_up(world: World) -> None:
    audience = world.add_audience()
    bad = [
        b"{not json",
        b"\xff\xfe",
        b"[]",
        b'{"audienceId":0,"lineOaId":1,"organizationId":1,"filePath":"x"}',
    ]
    for payload in bad:
        world.services.queues.publish("create_audience", payload)
    world.create(audience, [A])
    world.process()
    world.assert_consistent(audience, [A])
    letters = world.dead("create_audience")
    assert [letter.payload for letter in letters] == bad
    assert {(letter.reason, letter.attempts) for letter in letters} == {("bad_payload", 1)}


def test_a_failing_message_holds_its_own_audience_back_and_no_other(world: World) -> None:
    audience, other = world.add_audience(), world.add_audience()
    world.send("create_audience", audience, filePath="not/there.csv")
    world.update(audience, [A])
    world.create(other, [B])
    results = world.process()
    first = next(one for one in results if one.ended)
    assert (first.audience_id, first.status) == (other, "done")
    assert [one.status for one in results if one.queue == "update_audience"] == ["done"]
    assert results[-1].queue == "update_audience"
    world.assert_consistent(audience, [A])
    world.assert_consistent(other, [B])


def test_a_replayed_message_starts_afresh_and_keeps_its_place(world: World) -> None:
    from activity_platform.audience.attempts import forget_attempts

    audience = world.add_audience()
    entry = world.send("create_audience", audience, filePath=f"{world.hash}/late.csv")
    world.process()
    world.upload([A], f"{world.hash}/late.csv")
    queues = world.services.queues
    queues.replay(
        "create_audience", forget=lambda ids: forget_attempts(world.connection, "create_audience", ids)
    )
    world.update(audience, [B])
    results = world.process()
    assert [(one.queue, one.status, one.attempts) for one in results] == [
        ("create_audience", "done", 1),
        ("update_audience", "done", 1),
    ]
    world.assert_consistent(audience, [B])
    first, _ = world.imports(audience)
    assert (first["status"], first["reason"], first["message_id"]) == ("done", None, entry)
    assert entry.split("-")[0] in first["result_path"]
