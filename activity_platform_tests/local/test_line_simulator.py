from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from activity_platform.local.line_simulator import TokenLog, profile_of
from activity_platform.local.server import accepts_connections, free_port
from activity_platform.local.services import Stack
from activity_platform_tests.simulated_line import TOKEN, SimulatedLine, user_id, user_ids


@pytest.fixture
def line(stack: Stack) -> SimulatedLine:
    simulator = SimulatedLine(stack.environment["LINE_API_BASE_URL"])
    simulator.reset()
    return simulator


@pytest.fixture
def client(line: SimulatedLine) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"{line.base_url}/v2/bot/profile/", headers={"Authorization": f"Bearer {TOKEN}"}
    ) as client:
        yield client


def test_a_well_formed_id_has_the_profile_that_follows_from_it(client: httpx.Client) -> None:
    answer = client.get(user_id(7))
    assert answer.status_code == 200
    assert answer.json() == profile_of(user_id(7)) == client.get(user_id(7)).json()


def test_default_profiles_are_thai_and_emoji_and_leave_each_optional_field_out_at_times() -> None:
    profiles = [profile_of(name) for name in user_ids(60)]
    names = "".join(profile["displayName"] for profile in profiles)
    assert "สมชาย" in names
    assert "🌸" in names
    for optional in ("pictureUrl", "statusMessage", "language"):
        assert 0 < sum(optional in profile for profile in profiles) < len(profiles)
    assert all(profile.keys() >= {"userId", "displayName"} for profile in profiles)


def test_each_answer_has_a_request_id_of_its_own(client: httpx.Client) -> None:
    ids = {client.get(path).headers["x-line-request-id"] for path in (user_id(1), user_id(1), "nobody")}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name) for name in ids)


def test_a_channel_may_ask_about_itself_unless_a_rule_for_its_token_says_no(line: SimulatedLine) -> None:
    def ask(token: str) -> httpx.Response:
        return httpx.get(f"{line.base_url}/v2/bot/info", headers={"Authorization": f"Bearer {token}"})

    line.answer("unauthorized", token="lapsed")
    assert ask("good").json()["basicId"] == "@simulator"
    assert ask("lapsed").status_code == 401
    assert httpx.get(f"{line.base_url}/v2/bot/info").status_code == 401
    assert line.log()["requests"] == 0


@pytest.mark.parametrize("authorization", [None, "Basic abc", "Bearer"])
def test_a_request_without_a_token_is_unauthorized(line: SimulatedLine, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = httpx.get(f"{line.base_url}/v2/bot/profile/{user_id(1)}", headers=headers)
    assert answer.status_code == 401


@pytest.mark.parametrize("malformed", ["U" + "A" * 32, "U123", user_id(1)[1:], user_id(1) + "0"])
def test_a_malformed_id_is_refused(client: httpx.Client, malformed: str) -> None:
    answer = client.get(malformed)
    assert answer.status_code == 400
    assert answer.json() == {"message": "The value for the 'userId' parameter is invalid"}


def test_a_retry_key_is_refused_as_line_does(client: httpx.Client) -> None:
    assert client.get(user_id(1), headers={"X-Line-Retry-Key": "k"}).status_code == 400


def test_a_rule_for_ids_answers_only_those(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer("not_found", ids=[user_id(2)])
    assert client.get(user_id(1)).status_code == 200
    refused = client.get(user_id(2))
    assert (refused.status_code, refused.json()) == (404, {"message": "Not found"})


def test_a_rule_for_a_token_answers_only_that_token(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer("unauthorized", token="lapsed")
    assert client.get(user_id(1)).status_code == 200
    assert client.get(user_id(1), headers={"Authorization": "Bearer lapsed"}).status_code == 401


def test_a_rule_lets_the_first_requests_through_and_ends_after_its_times(
    line: SimulatedLine, client: httpx.Client
) -> None:
    line.answer("rate_limit", after=2, times=3)
    assert [client.get(user_id(1)).status_code for _ in range(7)] == [200, 200, 429, 429, 429, 200, 200]


def test_a_rule_ends_with_its_time(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer("server_error", for_seconds=0.3)
    assert client.get(user_id(1)).status_code == 500
    time.sleep(0.35)
    assert client.get(user_id(1)).status_code == 200


def test_a_rule_delays_the_usual_answer(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer("profile", delay_seconds=0.3)
    started = time.monotonic()
    assert client.get(user_id(1)).json() == profile_of(user_id(1))
    assert time.monotonic() - started >= 0.3


def test_a_rule_may_spell_out_status_body_and_headers(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer({"status": 503, "body": {"message": "later"}, "headers": {"Retry-After": "7"}})
    answer = client.get(user_id(1))
    assert (answer.status_code, answer.json()) == (503, {"message": "later"})
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ("monthly_limit", 429, '{"message":"You have reached your monthly limit."}'),
        ("forbidden", 403, '{"message":"Access to this API is not available for your account"}'),
        ("html", 200, "<html><body>Maintenance</body></html>"),
        ("no_display_name", 200, f'{{"userId":"{user_id(1)}"}}'),
    ],
)
def test_named_answers_are_what_line_or_a_proxy_before_it_says(
    line: SimulatedLine, client: httpx.Client, answer: str, status: int, body: str
) -> None:
    line.answer(answer)
    got = client.get(user_id(1))
    assert (got.status_code, got.text) == (status, body)


@pytest.mark.parametrize("answer", ["drop", "cut"])
def test_a_connection_can_be_lost_before_or_within_the_answer(
    line: SimulatedLine, client: httpx.Client, answer: str
) -> None:
    line.answer(answer, times=1)
    with pytest.raises(httpx.RemoteProtocolError if answer == "cut" else httpx.TransportError):
        client.get(user_id(1))
    assert client.get(user_id(1)).status_code == 200


@pytest.mark.parametrize("rule", [{"answer": "nonsense"}, {"answers": "drop"}, {"ids": "U1"}])
def test_a_senseless_rule_is_refused(line: SimulatedLine, rule: dict[str, object]) -> None:
    assert httpx.post(f"{line.base_url}/_simulator/rules", json=rule).status_code == 400


def test_the_log_counts_by_id_token_status_and_second(line: SimulatedLine, client: httpx.Client) -> None:
    line.answer("not_found", ids=[user_id(2)])
    for number in (1, 1, 2):
        client.get(user_id(number))
    log = line.log()
    assert log["requests"] == sum(log["seconds"].values()) == 3
    assert log["ids"] == {user_id(1): 2, user_id(2): 1}
    assert log["statuses"] == {"200": 2, "404": 1}
    assert log["tokens"] == {TOKEN: {"requests": 3, "max_per_second": 3}}
    assert log["max_in_flight"] == 1
    assert [entry[1:] for entry in log["recent"]] == [[user_id(n), TOKEN] for n in (1, 1, 2)]
    line.reset()
    assert line.log()["requests"] == 0


@pytest.mark.parametrize(
    ("arrivals", "most"),
    [
        ([0.9, 0.95, 1.05, 1.1], 4),  # two clock seconds, one second's span
        ([0.0, 1.0], 1),
        ([0.0, 0.999], 2),
        ([0.0, 0.1, 0.2, 1.15, 1.16], 3),
    ],
)
def test_the_most_in_a_second_is_taken_over_any_second(arrivals: list[float], most: int) -> None:
    log = TokenLog()
    for arrival in arrivals:
        log.add(arrival)
    assert (log.requests, log.most) == (len(arrivals), most)


def test_a_program_of_its_own_limits_as_told_and_stops_cleanly() -> None:
    port = free_port()
    command = (sys.executable, "-m", "activity_platform.local.line_simulator", "--port", str(port))
    with subprocess.Popen([*command, "--per-second", "3"], stderr=subprocess.PIPE) as program:
        while not accepts_connections(port):
            assert program.poll() is None
            time.sleep(0.05)
        with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            url = f"http://127.0.0.1:{port}/v2/bot/profile/{user_id(1)}"
            assert [client.get(url).status_code for _ in range(5)] == [200, 200, 200, 429, 429]
            program.send_signal(signal.SIGTERM)
            _, complaint = program.communicate(timeout=10)
    assert (program.returncode, complaint) == (0, b"")
