"""Whatever bytes come: no 5xx, the process lives, and the next good request is taken."""

from __future__ import annotations

import gzip
import random
import socket
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activity_platform_tests.ingest.served import Served, body, event, new_user

HEADERS = [
    "Content-Type: application/json", "Content-Type: text/plain", "Content-Encoding: gzip",
    "Content-Encoding: br", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue", "Expect: x", "Connection: close", "Connection: Upgrade\r\nUpgrade: websocket",
    "Content-Length: 5", "Content-Length: 2000000", "Idempotency-Key: \xff", "Idempotency-Key: k",
    "Authorization: Bearer x", "X: " + "y" * 9000, ": x", "X", " folded", "X:\0", "Host: a\r\nHost: b",
]  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
events = st.lists(
    json_values
    | st.fixed_dictionaries({}, optional=dict.fromkeys(event(), json_values))
    | st.builds(event, context=json_values),
    max_size=5,
)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with some bytes changed, cut out or doubled."""
    data = bytearray(content)
    for _ in range(chance.randint(0, 6)):
        at, length = chance.randrange(len(data) + 1), chance.randint(0, 12)
        change: Callable[[], bytes] = chance.choice(
            [lambda: b"", lambda: chance.randbytes(length), lambda: bytes(data[at : at + length]) * 2]  # noqa: B023
        )
        data[at : at + length] = change()
    return bytes(data)


def raw_request(api: Served, chance: random.Random) -> bytes:
    """A request that is nearly good."""
    content = body(event(), event(context={"k": [1, "x"]}))
    if chance.random() < 0.3:
        content = gzip.compress(content)
    content = mutated(content, chance)
    lines = chance.sample(HEADERS, chance.randint(0, 3))
    if chance.random() < 0.7:
        lines.append(f"Content-Length: {len(content)}")
    head = api.head("fuzz", method=chance.choice(["POST", "GET", "PUT", "X"])).decode()
    request = head.removesuffix("\r\n").encode() + "".join(f"{line}\r\n" for line in lines).encode("latin-1")
    request += b"\r\n" + content
    return mutated(request, chance) if chance.random() < 0.5 else request


def answers(connection: socket.socket, request: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    connection.sendall(request)
    connection.shutdown(socket.SHUT_WR)
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def fuzz_raw_requests(api: Served, count: int) -> None:
    for seed in range(count):
        request = raw_request(api, random.Random(seed))
        with closing(api.connect()) as connection:
            try:
                received = answers(connection, request)
            except (ConnectionResetError, BrokenPipeError) as error:
                raise AssertionError(f"seed {seed}: {request!r}") from error
        assert received.startswith(b"HTTP/1.1 "), (seed, request)
        assert b"HTTP/1.1 5" not in received, (seed, request)
    assert api.process.poll() is None
    assert "Traceback" not in api.log.read_text()
    assert api.post(body(event()), new_user()).status_code == 202


def test_raw_requests(api: Served) -> None:
    fuzz_raw_requests(api, 300)


@pytest.mark.heavy
def test_many_raw_requests(api: Served) -> None:
    fuzz_raw_requests(api, 20_000)


@pytest.mark.parametrize("examples", [60, pytest.param(3_000, marks=pytest.mark.heavy)])
def test_bodies_of_json(api: Served, examples: int) -> None:
    """A 202 stores as many rows as it says; a 400 none."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(events)
    def check(items: list[object]) -> None:
        user = new_user()
        response = api.post(body(*items), user)
        assert response.status_code in (202, 400)
        accepted = response.json()["accepted"] if response.status_code == 202 else 0
        assert accepted in (0, len(items))
        assert len(api.rows(user)) == accepted

    check()
    assert "Traceback" not in api.log.read_text()
