"""S20a: a client that repeats its request, with and without an Idempotency-Key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from activity_platform_tests.ingest.served import Served, assert_problem, body, event, new_user, read_answer


def test_a_repeat_with_a_key_is_answered_as_the_first_and_adds_nothing(api: Served, user: str) -> None:
    """S20a: even when the repeat is another body."""
    first = api.post(body(event(), event()), user, Idempotency_Key="k1")
    again = api.post(body(event(), event()), user, Idempotency_Key="k1")
    other = api.post(body(event()), user, Idempotency_Key="k1")
    assert [answer.json() for answer in (first, again, other)] == [{"accepted": 2}] * 3
    assert {answer.status_code for answer in (first, again, other)} == {202}
    assert len(api.rows(user)) == 2


def test_a_repeat_without_a_key_is_stored_again(api: Served, user: str) -> None:
    """S20a: at least once."""
    for _ in range(2):
        assert api.post(body(event()), user).status_code == 202
    assert len(api.rows(user)) == 2


def test_a_client_that_lost_its_answer_repeats_safely(api: Served, user: str) -> None:
    """S20a"""
    content = body(event(), event(), event())
    with api.connect() as connection:
        lines = (f"Content-Length: {len(content)}", "Idempotency-Key: lost")
        connection.sendall(api.head(user, *lines) + content)
    assert api.post(content, user, Idempotency_Key="lost").json() == {"accepted": 3}
    assert len(api.rows(user)) == 3


def test_simultaneous_repeats_are_answered_as_the_first(api: Served) -> None:
    for size in (1, 2, 3):
        user = new_user()

        def post(_: int, user: str = user, size: int = size) -> tuple[int, int]:
            response = api.post(body(*[event()] * size), user, Idempotency_Key="same")
            return response.status_code, response.json()["accepted"]

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(post, range(16))) == {(202, size)}
        assert len(api.rows(user)) == size


def test_a_key_is_its_users_own(api: Served) -> None:
    users = [new_user(), new_user()]
    for user in users:
        assert api.post(body(event()), user, Idempotency_Key="mine").json() == {"accepted": 1}
    assert [len(api.rows(user)) for user in users] == [1, 1]


def test_a_failed_attempt_is_not_remembered(api: Served, user: str) -> None:
    assert_problem(api.post(body(event(verb="x")), user, Idempotency_Key="k"), 400)
    assert_problem(api.post(body(event()), user, Idempotency_Key="k", Content_Type="text/plain"), 415)
    assert api.post(body(event(), event()), user, Idempotency_Key="k").json() == {"accepted": 2}
    assert len(api.rows(user)) == 2


def test_a_key_of_no_events_is_remembered(api: Served, user: str) -> None:
    assert api.post(body(), user, Idempotency_Key="empty").json() == {"accepted": 0}
    assert api.post(body(event()), user, Idempotency_Key="empty").json() == {"accepted": 0}
    assert api.rows(user) == []


@pytest.mark.parametrize(("age", "rows"), [("23 hours 59 minutes", 1), ("24 hours", 2), ("40 days", 2)])
def test_after_24_hours_the_key_is_free(api: Served, user: str, age: str, rows: int) -> None:
    api.post(body(event()), user, Idempotency_Key="k")
    with psycopg.connect(api.settings.database_url) as connection:
        connection.execute(
            "UPDATE idempotency_key SET created_at = created_at - %s::interval WHERE user_id = %s",
            [age, user],
        )
    for _ in range(2):
        assert api.post(body(event()), user, Idempotency_Key="k").json() == {"accepted": 1}
    assert len(api.rows(user)) == rows


@pytest.mark.parametrize("key", ["x", "k" * 128, "a b", "~", '"quoted"', "%00\\N'"])
def test_a_key_of_up_to_128_printable_characters_is_taken(api: Served, user: str, key: str) -> None:
    for _ in range(2):
        assert post_with_key(api, user, key.encode()) == 202
    assert len(api.rows(user)) == 1
    with psycopg.connect(api.settings.database_url) as connection:
        kept = connection.execute("SELECT key, accepted FROM idempotency_key WHERE user_id = %s", [user])
        assert kept.fetchall() == [(key, 1)]


@pytest.mark.parametrize(
    "key", [b"", b" ", b"k" * 129, "é".encode(), b"\xff", b"a\tb", b"\x7f", b"k\r\nIdempotency-Key: k"]
)
def test_another_key_is_refused(api: Served, user: str, key: bytes) -> None:
    assert post_with_key(api, user, key) == 400
    assert api.rows(user) == []


def post_with_key(api: Served, user: str, key: bytes) -> int:
    content = body(event())
    head = api.head(user, f"Content-Length: {len(content)}", "Idempotency-Key: KEY")
    with api.connect() as connection:
        connection.sendall(head.replace(b"KEY", key) + content)
        return read_answer(connection).status
