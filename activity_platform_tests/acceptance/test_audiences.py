"""Messages on the four queues become members, files and dead letters, through the sensor and the daemon."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from activity_platform.local.programs import Programs
from activity_platform.settings import Settings
from activity_platform_tests.acceptance.conftest import wait_until_empty
from activity_platform_tests.audience_world import World
from activity_platform_tests.simulated_line import SimulatedLine, user_ids

A, B, C, D, E = (f"U{letter * 32}" for letter in "abcde")

RUNS = """
query ($entry: String!) {
  runsOrError(filter: {tags: [{key: "entry_id", value: $entry}]}) { ... on Runs { results {
    runId status eventConnection(limit: 1000) { events { ... on MessageEvent { message } } }
  } } } }
"""
RUN_PID = re.compile(r"Started process for run \(pid: (\d+)\)")


def test_messages_of_two_audiences_end_in_their_order(world: World) -> None:
    first, second = world.add_audience(), world.add_audience()
    world.add_users([A, B, C], fresh=True)
    rule = world.add_rule(second, "removed")
    world.create(first, [A, B])
    world.create(second, [C])
    world.services.queues.publish("update_audience", b"poison")
    world.update(first, [B, C])
    world.delete(second)
    wait_until_empty(world, 200)
    world.assert_consistent(first, [B, C])
    world.assert_consistent(second, [])
    assert [row["status"] for row in world.imports(first) + world.imports(second)] == ["done"] * 4
    assert [(letter.payload, letter.reason) for letter in world.dead("update_audience")] == [
        (b"poison", "bad_payload")
    ]
    assert (rule, C, "removed") in world.firings()


@pytest.mark.heavy
@pytest.mark.timeout(1500)
def test_thirty_messages_of_five_audiences_with_failures_poison_and_a_killed_run(
    platform: Programs, world: World
) -> None:
    line = SimulatedLine(str(Settings.load(platform.environment).line_api_base_url))
    poisoned = len(world.dead("update_audience"))
    many = user_ids(20_000)
    audiences = [world.add_audience({"color": "red"}) for _ in range(5)]
    late, killed = audiences[0], audiences[1]
    late_path = f"private/{world.hash}/late.csv"
    entry = world.create(killed, many)
    world.send("create_audience", late, filePath=late_path)  # its file is not there yet
    line.answer({"status": 500}, ids=[E], times=3)  # fails at first
    for audience in audiences[2:]:
        world.create(audience, [A, B, E])
    world.services.queues.publish("update_audience", b"\xff poison")
    world.update(audiences[2], b"")  # refused: nobody is removed
    for audience in audiences:
        world.mookept(audience, [C, D], "add")
    for audience in audiences:
        world.mookept(audience, [A], "remove")
    for audience in audiences:
        world.update(audience, [B, C, E])
    for audience in audiences[:3]:
        world.mookept(audience, [D], "add")
    for audience in audiences[3:]:
        world.delete(audience)
    world.mookept(audiences[4], [A], "add")  # after the delete: a no-op
    world.mookept(audiences[0], [B], "remove")
    world.mookept(audiences[1], [B], "remove")

    kill_the_run_of(platform, entry, when=lambda: world.count("line_user") > 3_000)
    world.upload([A], late_path)
    wait_until_empty(world, 1000)

    expected = {0: [C, D, E], 1: [C, D, E], 2: [B, C, D, E], 3: [], 4: []}
    for number, members in expected.items():
        world.assert_consistent(audiences[number], members)
        assert world.info(audiences[number])["color"] == "red"
    history = [row for audience in audiences for row in world.imports(audience)]
    assert len(history) == 29
    assert sorted((row["status"], row["reason"]) for row in history if row["status"] != "done") == [
        ("failed", "empty_file"),
        ("skipped", "audience_deleted"),
    ]
    letters = world.dead("update_audience")[poisoned:]
    assert sorted(letter.reason for letter in letters) == ["bad_payload", "empty_file"]
    assert world.count("audience_change") == 0
    ((attempts,),) = world.connection.execute(
        "SELECT attempts FROM message_attempt WHERE queue = 'create_audience' AND message_id = %s", [entry]
    )
    assert attempts == 2


def kill_the_run_of(platform: Programs, entry: str, *, when: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not when():
        assert time.monotonic() < deadline, "the run doesn't get that far"
        time.sleep(0.05)
    (run,) = runs_of(platform, entry)
    messages = " ".join(event.get("message", "") for event in run["eventConnection"]["events"])
    found = RUN_PID.search(messages)
    assert found, messages
    os.kill(int(found[1]), signal.SIGKILL)


def runs_of(platform: Programs, entry: str) -> list[dict[str, Any]]:
    answer = httpx.post(
        f"{platform.ui_url}/graphql", json={"query": RUNS, "variables": {"entry": entry}}
    ).json()
    results: list[dict[str, Any]] = answer["data"]["runsOrError"]["results"]
    return results
