"""The database goes away, the app is killed, the app is stopped: nobody is told what is not true."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activity_platform.local.services import Stack
from activity_platform_tests.ingest.load import Load
from activity_platform_tests.ingest.served import (
    EVENTS,
    Served,
    assert_problem,
    body,
    event,
    new_user,
    read_answer,
)


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose PostgreSQL may be killed, with its default durability."""
    with Stack(tmp_path_factory.mktemp("killed")) as stack:
        yield stack


@pytest.fixture
def killable(own_stack: Stack, tmp_path: Path) -> Iterator[Served]:
    if not own_stack.postgres.alive:
        own_stack.postgres.start()
    with Served(own_stack.environment, tmp_path) as served:
        yield served


def recovered(api: Served, seconds: float = 30) -> bool:
    """Whether the app takes events again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if api.post(body(event()), new_user()).status_code == 202:
            return True
        time.sleep(0.1)
    return False


def test_the_app_starts_while_the_database_is_away_and_takes_events_once_it_is_back(
    own_stack: Stack, tmp_path: Path, user: str
) -> None:
    """S3: 503, no row, never 202."""
    own_stack.postgres.stop()
    with Served(own_stack.environment, tmp_path) as api:
        for response in (
            api.post(body(event()), user),
            api.post(body(event()), user, Idempotency_Key="k"),
            api.get_edges("", user),
            api.client.get(f"{api.url}/readyz"),
        ):
            assert_problem(response, 503)
            assert int(response.headers["retry-after"]) >= 1
        assert api.client.get(f"{api.url}/healthz").status_code == 200
        assert_problem(api.post(b"{}", user), 400)
        assert_problem(api.client.post(api.url + EVENTS), 401)

        own_stack.postgres.start()
        assert recovered(api)
        assert api.get_edges("", user).status_code == 200
        assert api.client.get(f"{api.url}/readyz").status_code == 200
        assert api.rows(user) == []
        assert api.post(body(event()), user, Idempotency_Key="k").json() == {"accepted": 1}


def kill_the_app(api: Served, rounds: int) -> None:
    load = Load(api)
    for number in range(rounds):
        with load:
            time.sleep(0.5 + random.random())
            api.stop(signal.SIGKILL)
            api.start()
            assert recovered(api), f"round {number}"
    assert load.statuses() <= {202, None}
    assert sum(told.status == 202 for told in load.told.values()) > 10 * rounds
    load.check()


def kill_the_database(stack: Stack, api: Served, rounds: int) -> None:
    load = Load(api)
    for number in range(rounds):
        with load:
            time.sleep(0.5 + random.random())
            stack.postgres.kill()
            stack.postgres.start()
            assert recovered(api), f"round {number}"
    assert load.statuses() <= {202, 503}
    assert sum(told.status == 202 for told in load.told.values()) > 10 * rounds
    load.check()


def test_a_killed_app_stored_what_it_confirmed(killable: Served) -> None:
    kill_the_app(killable, 1)


@pytest.mark.heavy
def test_an_app_killed_twenty_times_stored_what_it_confirmed(killable: Served) -> None:
    kill_the_app(killable, 20)


def test_a_killed_database_holds_what_was_confirmed_and_nothing_else(
    own_stack: Stack, killable: Served
) -> None:
    kill_the_database(own_stack, killable, 1)


@pytest.mark.heavy
def test_a_database_killed_twenty_times_holds_what_was_confirmed(own_stack: Stack, killable: Served) -> None:
    kill_the_database(own_stack, killable, 20)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_app_answers_what_it_took(own_stack: Stack, tmp_path: Path, workers: int) -> None:
    """Every request that reached it is answered; later ones find nobody who listens.

    The kernel may still have connected a client of which the app never knew. Its request left nothing.
    """
    with Served(own_stack.environment, tmp_path, workers=workers) as api:
        load = Load(api)
        with load:
            time.sleep(1)
            assert api.stop() == 0
        unanswered = [user for user, told in load.told.items() if told.connected and told.status is None]
        assert len(unanswered) <= 2
        assert [api.rows(user) for user in unanswered] == [[]] * len(unanswered)
        assert load.statuses() <= {202, None}
        load.check()


def test_a_body_that_is_under_way_at_the_stop_is_taken(own_stack: Stack, killable: Served, user: str) -> None:
    content = body(event())
    with killable.connect() as uploading, killable.connect() as idle:
        uploading.sendall(killable.head(user, f"Content-Length: {len(content)}") + content[:10])
        idle.sendall(killable.request(user, content))
        assert read_answer(idle).status == 202
        killable.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        idle.sendall(killable.request(user, content))
        uploading.sendall(content[10:])
        for answer in (read_answer(idle), read_answer(uploading)):
            assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert killable.process.wait(10) == 0
    assert len(killable.rows(user)) == 3
