"""HTTP/1.1 by uvicorn and httptools, with the manners that a client of any quality needs to get its answer.

- A connection that is to end is half closed, and what the client still sends is read and thrown away for a
  while. Closed at once, the kernel would answer that with a reset, which takes the response away from the
  client before it has read it.
- What is no HTTP is answered with 400 as a problem, behind the answers that are still owed.
- A method of any name reaches the app, which answers 405; the parser knows only registered ones.
- A head that is too long or too slow ends the connection; a client that has sent all and closed its side is
  answered; an upgrade that nobody offers is ignored (RFC 9110 section 7.8).
- On a clean stop, connections between two requests stay for a moment, so that a request that is just
  arriving is answered rather than cut off.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from activity_platform.ingest.problems import problem_body

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
LINGER_BYTES = 256 * 1024 * 1024
LINGER_SECONDS = 30.0
LINGER_IDLE_SECONDS = 3.0
STOP_GRACE_SECONDS = 0.5

#: Request lines of methods that every parser knows. Others are handed to the parser as PUT, under which the
#: app sees their real name.
PLAIN_METHODS = (b"POST ", b"GET ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ")
OTHER_METHOD = re.compile(rb"(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) (?=/[^ ]* HTTP/1\.[01]\r\n)")
STAND_IN = b"PUT "

UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)

CONTINUE = b"HTTP/1.1 100"

MALFORMED = "This is not HTTP/1.1."
TOO_LONG = f"The head is longer than {MAX_HEAD_BYTES} bytes."


class PoliteProtocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self._answers = _Transport(transport, self)
        self.transport = self._answers  # type: ignore[assignment]
        self._method: bytes | None = None
        self._in_message = self._in_head = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = False  # nothing more of this connection is parsed
        self.lingering = False
        self._linger_bytes = 0
        self._client_is_done = self.stopping = False
        self._set_timer(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lingering = True
        self._clear_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.lingering:
            self._throw_away(len(data))
        elif not self._deaf:
            self._unset_keepalive_if_required()
            self._parse(data if self._in_message else self._palatable(data))
            self._watch_head(len(data))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It may still read: what it asked for in full is answered."""
        self._client_is_done = True
        if self.lingering or not (self._in_message or self._owes_answer):
            self._socket.close()
        elif self._in_message:
            self._refuse(HTTPStatus.BAD_REQUEST, "The request ends before its end.")
        else:
            self._end_behind_newest_answer()
        return True

    def shutdown(self) -> None:
        self.stopping = True
        if self._owes_answer:
            self.cycle.keep_alive = False
        elif self.lingering:
            self._socket.close()
        else:
            self.loop.call_later(STOP_GRACE_SECONDS, self._close_if_idle)

    # The parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise ValueError(TOO_LONG)  # the parser passes it on as an error of its own
        super().on_headers_complete()
        if self._method is not None:
            self.scope["method"] = self._method.decode("ascii")
            self._method = None
        if self.stopping:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = False

    def on_response_complete(self) -> None:
        self._answers.flush()
        if self.lingering:  # the requests behind a closing answer are void (RFC 9112 section 9.6)
            self.server_state.total_requests += 1
            self.pipeline.clear()
        else:
            super().on_response_complete()

    # Reading

    @property
    def _owes_answer(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # its head came in parts, and the parser gives up behind it
            self._end_behind_newest_answer()
        except httptools.HttpParserError as error:
            self._refuse(
                HTTPStatus.BAD_REQUEST, TOO_LONG if TOO_LONG in str(error.__context__) else MALFORMED
            )

    def _palatable(self, data: bytes) -> bytes:
        """The start of a request as the parser takes it: a method that it knows, and no upgrade."""
        if not data.startswith(PLAIN_METHODS) and (found := OTHER_METHOD.match(data)):
            self._method = found[1]
            data = STAND_IN + data[found.end() :]
        if upgrade := UPGRADE.search(data, 0, data.find(b"\r\n\r\n")):
            data = data[: upgrade.start()] + b"\r\nX-Upgrade" + data[upgrade.end() :]
        return data

    def _watch_head(self, size: int) -> None:
        """A head in parts must be complete in time and within the limit."""
        if self._deaf or self.lingering:
            return
        self._head_bytes += size if self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.BAD_REQUEST, TOO_LONG)
        elif self._owes_answer:
            self._clear_timer()
        elif self._timer is None and self._in_message:
            self._set_timer(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"The head was not complete after {HEAD_SECONDS:g} s.")
        else:
            self._socket.close()

    # Ending

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answers what can't be parsed further, unless answers to earlier requests come first."""
        self._deaf = True
        cycle = self.cycle
        if not self._owes_answer:
            self._write_problem(status, detail)
        elif not cycle.more_body:
            self._end_behind_newest_answer()
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline[0] = (cycle, _malformed)
        elif cycle.response_started:
            self._socket.close()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._write_problem(status, detail)

    def _end_behind_newest_answer(self) -> None:
        self._deaf = True
        self.cycle.keep_alive = False

    def _write_problem(self, status: HTTPStatus, detail: str) -> None:
        body = problem_body(status, detail)
        head = b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self._socket.write(STATUS_LINE[status] + head % len(body) + body)
        self.linger()

    def linger(self) -> None:
        """Ends the connection behind what is written: our side now, theirs when they close or time is up."""
        if self.lingering or self._socket.is_closing():
            self._socket.close()
            return
        self.lingering = True
        self._unset_keepalive_if_required()
        if self._client_is_done:
            self._socket.close()
            return
        self._socket.write_eof()
        self.flow.resume_reading()
        self._linger_until = self.loop.time() + LINGER_SECONDS
        self._set_timer(LINGER_IDLE_SECONDS, self._socket.close)

    def _throw_away(self, size: int) -> None:
        self._linger_bytes += size
        if self._linger_bytes > LINGER_BYTES or self.loop.time() > self._linger_until:
            self._socket.close()
        else:
            self._set_timer(LINGER_IDLE_SECONDS, self._socket.close)

    def _close_if_idle(self) -> None:
        if not self._owes_answer:
            self._socket.close()

    def _set_timer(self, seconds: float, action: Any) -> None:
        self._clear_timer()
        self._timer = self.loop.call_later(seconds, action)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Transport:
    """The transport, as uvicorn sees it: to close it is to linger, and a head waits for its body.

    Head and body apart would cost a system call more here, and a wake-up at the client.
    """

    def __init__(self, transport: asyncio.Transport, protocol: PoliteProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._head = b""

    def is_closing(self) -> bool:
        return self._protocol.lingering or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n") and not data.startswith(CONTINUE):
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def flush(self) -> None:
        """Writes the head of an answer that has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._protocol.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def _malformed(_scope: Any, _receive: Any, send: Any) -> None:
    body = problem_body(HTTPStatus.BAD_REQUEST, MALFORMED)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
