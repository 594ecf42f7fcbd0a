from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import httpx
import pytest

from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways.line_api import (
    LineApi,
    MonthlyLimit,
    NotFound,
    Profile,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from activity_platform.local.line_simulator import profile_of
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack
from activity_platform_tests.simulated_line import TOKEN, SimulatedLine, user_id, user_ids

SOMEBODY = user_id(0xABCDEF)


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


def ask(base_url: str, name: str = SOMEBODY, **options: Any) -> Profile | NotFound:
    return ask_for(base_url, [name], **options)[0]


def ask_for(base_url: str, names: list[str], **options: Any) -> list[Profile | NotFound]:
    async def answers() -> list[Profile | NotFound]:
        async with LineApi(base_url, TOKEN, **options) as api:
            return [await api.get_profile(name) for name in names]

    return asyncio.run(answers())


def spelled_out(text: str) -> dict[str, Any]:
    return {"status": 200, "body": f'{{"userId":"{SOMEBODY}",{text}}}'}


def test_profiles_are_what_line_says_with_none_for_what_it_leaves_out(line: SimulatedLine) -> None:
    names = user_ids(20)
    for name, profile in zip(names, ask_for(line.base_url, names), strict=True):
        said = profile_of(name)
        assert profile == Profile(
            user_id=name,
            display_name=said["displayName"],
            picture_url=said.get("pictureUrl"),
            status_message=said.get("statusMessage"),
            language=said.get("language"),
        )


def test_a_profile_of_only_the_required_fields_is_a_profile(line: SimulatedLine) -> None:
    line.answer({"profile": {"displayName": "X"}})
    assert ask(line.base_url) == Profile(SOMEBODY, "X", None, None, None)


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (r"a\u0000b", "ab"),
        (r"lone \ud83d half", "lone  half"),
        (r"\ude00\ud83d", ""),
        (r"\ud83d\ude00 whole", "😀 whole"),
        ("👨‍👩‍👧‍👦", "👨‍👩‍👧‍👦"),
    ],
)
def test_what_postgres_cannot_hold_is_taken_out_of_every_text(
    line: SimulatedLine, said: str, stored: str
) -> None:
    line.answer(spelled_out(f'"displayName":"{said}","statusMessage":"{said}"'))
    assert ask(line.base_url) == Profile(SOMEBODY, stored, status_message=stored or None)


def check_token(base_url: str) -> None:
    async def check() -> None:
        async with LineApi(base_url, TOKEN) as api:
            await api.check_token()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("unauthorized", Unauthorized), ("rate_limit", RateLimited), ("html", None), ("drop", Unavailable)],
)
def test_a_token_is_good_when_line_answers_the_channel_about_itself(
    line: SimulatedLine, answer: str, kind: type[Exception] | None
) -> None:
    check_token(line.base_url)
    line.answer(answer, token=TOKEN)
    with pytest.raises(kind) if kind else contextlib.nullcontext():
        check_token(line.base_url)


def test_unknown_fields_and_optional_ones_of_another_type_do_no_harm(line: SimulatedLine) -> None:
    line.answer(spelled_out('"displayName":"X","pictureUrl":null,"language":["th"],"new":{"a":1}'))
    assert ask(line.base_url) == Profile(SOMEBODY, "X")


@pytest.mark.parametrize(("answer", "status"), [("not_found", 404), ("invalid_id", 400)])
def test_404_and_400_are_definite_answers(line: SimulatedLine, answer: str, status: int) -> None:
    line.answer(answer)
    got = ask(line.base_url)
    assert isinstance(got, NotFound)
    assert (got.user_id, got.status) == (SOMEBODY, status)
    assert got.request_id


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("unauthorized", Unauthorized),
        ("forbidden", Unauthorized),
        ("monthly_limit", MonthlyLimit),
        ("rate_limit", RateLimited),
        ("server_error", Unavailable),
        ({"status": 502, "body": "bad gateway", "content_type": "text/plain"}, Unavailable),
        ({"status": 302, "body": {}, "headers": {"Location": "/elsewhere"}}, Unavailable),
        ({"status": 408, "body": {}}, Unavailable),
        ("html", Unavailable),
        ("no_display_name", Unavailable),
        ({"status": 200, "body": []}, Unavailable),
        ({"status": 200, "body": "[" * 100_000}, Unavailable),
        ({"status": 200, "body": ""}, Unavailable),
        ({"status": 200, "body": {"userId": user_id(1), "displayName": "somebody else"}}, Unavailable),
        ({"status": 200, "body": {"userId": SOMEBODY, "displayName": 7}}, Unavailable),
    ],
)
def test_every_other_answer_is_raised_as_its_kind_with_line_s_request_id(
    line: SimulatedLine, answer: str | dict[str, Any], kind: type[Exception]
) -> None:
    line.answer(answer)
    with pytest.raises(kind) as caught:
        ask(line.base_url)
    message = str(caught.value)
    assert "X-Line-Request-Id 000000" in message
    assert "\n" not in message
    assert SOMEBODY not in message
    assert TOKEN not in message
    stops = issubclass(kind, PermanentFailure)
    assert stops != issubclass(kind, TransientFailure)
    assert stops == (kind in (Unauthorized, MonthlyLimit))


@pytest.mark.parametrize(
    ("header", "seconds"), [({}, None), ({"Retry-After": "7"}, 7.0), ({"Retry-After": "soon"}, None)]
)
def test_a_rate_limit_tells_how_long_to_wait_if_line_says_so(
    line: SimulatedLine, header: dict[str, str], seconds: float | None
) -> None:
    line.answer(
        {"status": 429, "body": {"message": "The API rate limit has been exceeded."}, "headers": header}
    )
    with pytest.raises(RateLimited) as caught:
        ask(line.base_url)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("lost", ["drop", "cut"])
def test_a_lost_connection_is_no_answer_and_nothing_is_sent_twice(line: SimulatedLine, lost: str) -> None:
    # The first request leaves a kept connection; on such a one a client is tempted to try again by itself.
    line.answer(lost, after=1)
    with pytest.raises(Unavailable, match=r"no answer from LINE about U0000… \(\w+\)"):
        ask_for(line.base_url, [SOMEBODY, SOMEBODY])
    assert line.log()["ids"] == {SOMEBODY: 2}


def test_a_server_that_is_not_there_is_no_answer() -> None:
    with pytest.raises(Unavailable, match="ClientConnectorError"):
        ask(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("options", [{"timeout": httpx.Timeout(5, read=0.1)}, {"total_seconds": 0.1}])
def test_an_answer_that_takes_too_long_is_none(line: SimulatedLine, options: dict[str, Any]) -> None:
    line.answer("profile", delay_seconds=1)
    with pytest.raises(Unavailable, match="Timeout"):
        ask(line.base_url, **options)


def test_no_more_connections_are_used_than_allowed(line: SimulatedLine) -> None:
    line.answer("profile", delay_seconds=0.05)

    async def ask_at_once() -> None:
        async with LineApi(line.base_url, TOKEN, connections=3) as api:
            await asyncio.gather(*(api.get_profile(name) for name in user_ids(12)))

    asyncio.run(ask_at_once())
    assert line.log()["max_in_flight"] == 3


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "โทเค็น"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        LineApi("http://127.0.0.1:1", token)
    assert not token or token not in str(caught.value)


def test_an_odd_id_stays_one_part_of_the_path(line: SimulatedLine) -> None:
    assert isinstance(ask(line.base_url, "../../_simulator/log?x"), NotFound)


def test_no_line_id_is_logged(line: SimulatedLine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(line.base_url)
    assert SOMEBODY not in caplog.text
