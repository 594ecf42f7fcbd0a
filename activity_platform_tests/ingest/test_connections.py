"""What happens on the wire: refusals that the client can read, malformed HTTP, keep-alive, slow clients."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from activity_platform_tests.ingest.served import EVENTS, Answer, Served, body, event, read_answer

MEBIBYTE = 2**20


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed its side; waits for it."""
    connection.settimeout(10)
    return connection.recv(1) == b""


def good_request_is_taken(api: Served, user: str, connection: socket.socket) -> bool:
    """On this very connection."""
    connection.sendall(api.request(user, body(event())))
    return read_answer(connection).status == 202


# S8: too big


def test_a_plain_client_reads_413_after_sending_20_mebibytes(api: Served, user: str) -> None:
    """S8: at least 99 of 100 tries, the server's memory stays flat."""
    content = b"x" * (20 * MEBIBYTE)
    request = api.head(user, f"Content-Length: {len(content)}")
    read_413(api, request, content)
    memory = api.memory()
    read = sum(read_413(api, request, content) for _ in range(100))
    assert read >= 99
    assert api.memory() - memory < 20 * MEBIBYTE
    assert api.rows(user) == []


def read_413(api: Served, request: bytes, content: bytes) -> bool:
    """As a plain client does it: write everything, then read."""
    with closing(api.connect()) as connection:
        try:
            connection.sendall(request)
            connection.sendall(content)
            answer = read_answer(connection)
        except OSError:
            return False
        return (answer.status, answer.headers["connection"]) == (413, "close") and is_closed(connection)


def test_413_comes_before_the_body(api: Served, user: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, f"Content-Length: {MEBIBYTE + 1}"))
        assert read_answer(connection).status == 413


def test_a_client_that_waits_for_100_reads_413_without_it(api: Served, user: str) -> None:
    """S8"""
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, f"Content-Length: {20 * MEBIBYTE}", "Expect: 100-continue"))
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_client_that_waits_for_100_gets_it_for_a_body_that_is_wanted(api: Served, user: str) -> None:
    content = body(event())
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, f"Content-Length: {len(content)}", "Expect: 100-continue"))
        assert read_answer(connection).status == 100
        connection.sendall(content)
        assert read_answer(connection).status == 202
        assert good_request_is_taken(api, user, connection)


@pytest.mark.parametrize("lines", [("Content-Type: text/plain",), ("Authorization: Bearer x",)])
def test_a_client_that_waits_for_100_reads_its_refusal_at_once(api: Served, lines: tuple[str, ...]) -> None:
    head = [
        f"POST {EVENTS} HTTP/1.1",
        "Host: x",
        "Content-Length: 100",
        "Expect: 100-continue",
        *lines,
        "",
        "",
    ]
    with closing(api.connect()) as connection:
        connection.sendall("\r\n".join(head).encode())
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert is_closed(connection)


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long(api: Served, user: str) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Transfer-Encoding: chunked"))
        for _ in range(16):
            connection.sendall(chunk)
        connection.setblocking(False)
        time.sleep(0.3)
        with pytest.raises(BlockingIOError):
            connection.recv(1)  # a mebibyte is not too long
        connection.settimeout(10)
        connection.sendall(chunk)
        assert read_answer(connection).status == 413


def test_a_chunked_body_is_taken(api: Served, user: str) -> None:
    content = body(event(), event())
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Transfer-Encoding: chunked"))
        for byte in content:
            connection.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection).json == {"accepted": 2}
        assert good_request_is_taken(api, user, connection)


# A refusal leaves the connection usable


@pytest.mark.parametrize("size", [0, 10, 60_000])
@pytest.mark.parametrize("late", [False, True])
def test_after_a_refusal_the_next_request_on_the_connection_is_taken(
    api: Served, user: str, size: int, late: bool
) -> None:
    """The body that nobody read is gone, whether it comes with its head or behind the answer."""
    head = f"POST {EVENTS} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    with closing(api.connect()) as connection:
        for _ in range(3):
            connection.sendall(head)
            if not late:
                connection.sendall(b"x" * size)
            assert read_answer(connection).status == 401
            if late:
                connection.sendall(b"x" * size)
        assert good_request_is_taken(api, user, connection)


def test_a_long_body_without_a_token_is_not_read(api: Served) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(
            f"POST {EVENTS} HTTP/1.1\r\nHost: x\r\nContent-Length: {MEBIBYTE}\r\n\r\n".encode()
        )
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (401, "close")


# Malformed HTTP


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET\r\n\r\n",
        b"garbage garbage garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"G" * 70_000,
    ],
)
def test_what_is_no_http_is_answered_with_400(api: Served, request_bytes: bytes) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(request_bytes)
        answer = read_answer(connection)
        if request_bytes.startswith(b"POST / HTTP/1.1") and answer.status == 404:
            answer = read_answer(connection)
        assert_malformed(answer)
        assert is_closed(connection)


def assert_malformed(answer: Answer) -> None:
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.headers["connection"] == "close"
    assert answer.json["status"] == 400


def test_a_malformed_chunk_is_answered_with_400(api: Served, user: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Transfer-Encoding: chunked"))
        time.sleep(0.1)
        connection.sendall(b"5\r\n12345\r\nzz\r\n")
        assert_malformed(read_answer(connection))
        assert is_closed(connection)


def test_a_malformed_body_behind_an_expectation_is_answered_with_400(api: Served, user: str) -> None:
    """No 100 is written behind the final answer."""
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Transfer-Encoding: chunked", "Expect: 100-continue") + b"zz\r\n")
        assert_malformed(read_answer(connection))
        assert is_closed(connection)
    assert "Traceback" not in api.log.read_text()


def test_garbage_behind_a_good_request_does_not_take_its_answer(api: Served, user: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.request(user, body(event())) + b"\0\0garbage\r\n\r\n")
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert is_closed(connection)
    assert len(api.rows(user)) == 1


def test_pipelined_requests_are_answered_in_order(api: Served, user: str) -> None:
    good = api.request(user, body(event()))
    bad = api.request(user, b"{}")
    with closing(api.connect()) as connection:
        connection.sendall(good + bad + good + api.head(user, "Transfer-Encoding: chunked") + b"zz\r\n")
        assert [read_answer(connection).status for _ in range(4)] == [202, 400, 202, 400]
        assert is_closed(connection)
    assert len(api.rows(user)) == 2


@pytest.mark.parametrize("method", ["post", "BREW", "M-SEARCH", "X" * 64, "CONNECT"])
def test_a_method_of_any_name_is_405(api: Served, user: str, method: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Content-Length: 4", method=method) + b"{}{}")
        answer = read_answer(connection)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert good_request_is_taken(api, user, connection)


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_upgrade_is_ignored(api: Served, user: str, protocol: str) -> None:
    content = body(event())
    upgrade = ("Connection: Upgrade", f"Upgrade: {protocol}", f"Content-Length: {len(content)}")
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, *upgrade) + content)
        assert read_answer(connection).status == 202
        connection.sendall(b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert read_answer(connection).status == 200
        assert good_request_is_taken(api, user, connection)


# Ends of connections


def test_a_client_that_closed_its_side_is_answered(api: Served, user: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.request(user, body(event())))
        connection.shutdown(socket.SHUT_WR)
        assert read_answer(connection).status == 202
        assert is_closed(connection)


def test_a_request_that_ends_before_its_end_is_answered_with_400(api: Served, user: str) -> None:
    for request_bytes in (api.head(user, "Content-Length: 100") + b"x", b"GET / HT"):
        with closing(api.connect()) as connection:
            connection.sendall(request_bytes)
            time.sleep(0.1)
            connection.shutdown(socket.SHUT_WR)
            assert_malformed(read_answer(connection))


def test_a_request_of_http_1_0_is_answered_and_closed(api: Served) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read_answer(connection).status == 200
        assert is_closed(connection)


@pytest.mark.heavy
def test_a_body_that_stalls_is_ended_after_half_a_minute(api: Served, user: str) -> None:
    with closing(api.connect()) as connection:
        connection.sendall(api.head(user, "Content-Length: 100") + b"{")
        started = time.monotonic()
        answer = read_answer(connection)
        assert 29 < time.monotonic() - started < 33
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert answer.headers["content-type"] == "application/problem+json"
        assert is_closed(connection)
    assert api.rows(user) == []


@pytest.fixture(scope="module")
def hasty(module_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The app with a second of patience."""
    with Served(module_environment, tmp_path_factory.mktemp("hasty"), patience=1.0) as served:
        yield served


def test_a_body_or_head_that_stalls_is_ended_with_408(hasty: Served, user: str) -> None:
    for request_bytes in (hasty.head(user, "Content-Length: 9") + b"{", b"POST / HTTP/1.1\r\nHost:"):
        with closing(hasty.connect()) as connection:
            connection.sendall(request_bytes)
            answer = read_answer(connection)
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert answer.json["status"] == 408
            assert is_closed(connection)


def test_a_slow_body_is_taken_as_long_as_it_comes(hasty: Served, user: str) -> None:
    content = body(event())
    with closing(hasty.connect()) as connection:
        connection.sendall(hasty.head(user, f"Content-Length: {len(content)}"))
        for start in range(0, len(content), 16):
            time.sleep(0.15)
            connection.sendall(content[start : start + 16])
        assert read_answer(connection).status == 202


def open_files(api: Served) -> int:
    return len(list(Path(f"/proc/{api.process.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_clients_that_vanish_leave_nothing_behind(api: Served, user: str) -> None:
    before = open_files(api)
    for _ in range(50):
        with closing(api.connect()) as connection, contextlib.suppress(OSError):
            connection.sendall(api.head(user, "Content-Length: 1000") + b"{")
    deadline = time.monotonic() + 10
    while open_files(api) > before + 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert open_files(api) <= before + 5
    assert "Traceback" not in api.log.read_text()
