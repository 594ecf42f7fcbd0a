"""A stand-in for LINE's `GET /v2/bot/profile/{userId}` and `GET /v2/bot/info`, after its OpenAPI description.

Without a script every well-formed user id has a profile that follows from the id alone. Rules change that
per id, per token or for a while, and a log tells what was asked. Both are reached over HTTP:

- `POST /_simulator/rules` adds a rule (see `Rule`); the first one that matches a request answers it. For
  the info, which the log doesn't count, the id is empty
- `DELETE /_simulator/rules` forgets all rules
- `GET /_simulator/log` tells what was asked (see `RequestLog.report`); `?ids=1` adds the counts per id
- `POST /_simulator/reset` forgets rules and log

Run it with `python -m activity_platform.local.line_simulator --port P`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

PROFILE_PATH = "/v2/bot/profile/"
INFO_PATH = "/v2/bot/info"
USER_ID = re.compile(r"U[0-9a-f]{32}")
RECENT_REQUESTS = 10_000
WINDOW_SECONDS = 1.0  # LINE states its limits a second

NAMES = (
    "สมชาย ใจดี",
    "Mali 🌸",
    "กานต์พิชชา",
    "Anan W.",
    "น้องฟ้า 💙",
    "José",
    "ครอบครัว 👨‍👩‍👧‍👦",
    "木村 花",
    "ปิยะ (ร้านกาแฟ)",
    "Ploy",
)
LANGUAGES = ("th", "en", "ja", "th-TH")
STATUSES = ("สวัสดีค่ะ", "On holiday ✈️", "ว่าง", "“quoted, with a comma”")

PLAIN_JSON = (b"content-type", b"application/json")


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule answers. A text body is sent as it stands, another one as JSON.

    `profile` is a 200 with `userId` and the given fields. Without `profile`, `body` and a `status` the
    usual answer is given. `connection` `drop` closes before the first byte, `cut` in the middle of the body.
    """

    status: int | None = None
    body: Any = None
    profile: dict[str, Any] | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    connection: Literal["keep", "drop", "cut"] = "keep"


def _message(status: int, text: str) -> Answer:
    return Answer(status=status, body={"message": text})


USUAL = Answer()
NOT_FOUND = _message(404, "Not found")
INVALID_ID = _message(400, "The value for the 'userId' parameter is invalid")
UNAUTHORIZED = _message(
    401, "Authentication failed. Confirm that the access token in the authorization header is valid."
)
BOT_INFO = Answer(
    status=200,
    body={
        "userId": f"U{0:032x}",
        "basicId": "@simulator",
        "displayName": "Simulated account",
        "chatMode": "bot",
        "markAsReadMode": "auto",
    },
)
RATE_LIMIT = _message(429, "The API rate limit has been exceeded. Try again later.")
RETRY_KEY_REFUSED = _message(400, "The X-Line-Retry-Key header is not supported by this endpoint")
METHOD_NOT_ALLOWED = _message(405, "Method not allowed")

ANSWERS = {
    "profile": USUAL,
    "not_found": NOT_FOUND,
    "invalid_id": INVALID_ID,
    "unauthorized": UNAUTHORIZED,
    "forbidden": _message(403, "Access to this API is not available for your account"),
    "rate_limit": RATE_LIMIT,
    "monthly_limit": _message(429, "You have reached your monthly limit."),
    "server_error": _message(500, "Internal server error"),
    "html": Answer(status=200, body="<html><body>Maintenance</body></html>", content_type="text/html"),
    "no_display_name": Answer(profile={}),
    "drop": Answer(connection="drop"),
    "cut": Answer(connection="cut"),
}
"""The answers a rule may name instead of spelling one out."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests get `answer`: all, or those for one of `ids`, with `token`, or both.

    The first `after` of them are let through to the next rule, then at most `times` are answered, and none
    later than `for_seconds` after the rule was added. `delay_seconds` is waited before the answer.
    """

    answer: Answer | str = "profile"
    ids: frozenset[str] | None = None
    token: str | None = None
    after: int = 0
    times: int | None = None
    for_seconds: float | None = None
    delay_seconds: float = 0.0


class Script:
    """The rules in the order they were added, with how often each has matched."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rules: list[_Armed] = []

    def add(self, rule: Rule) -> None:
        """Raises `ValueError` for the name of an answer that is none of `ANSWERS`."""
        self._rules.append(_Armed(rule, self._clock()))

    def clear(self) -> None:
        self._rules.clear()

    def choose(self, user_id: str, token: str | None) -> tuple[Answer, float]:
        """The answer to a request and the seconds to wait before it."""
        for armed in self._rules:
            if armed.takes(user_id, token, self._clock):
                return armed.answer, armed.rule.delay_seconds
        return USUAL, 0.0


class _Armed:
    def __init__(self, rule: Rule, now: float) -> None:
        self.rule = rule
        self.answer = _named(rule.answer) if isinstance(rule.answer, str) else rule.answer
        self._until = None if rule.for_seconds is None else now + rule.for_seconds
        self._seen = 0

    def takes(self, user_id: str, token: str | None, clock: Callable[[], float]) -> bool:
        rule = self.rule
        if rule.ids is not None and user_id not in rule.ids:
            return False
        if rule.token is not None and token != rule.token:
            return False
        if self._until is not None and clock() > self._until:
            return False
        self._seen += 1
        return self._seen > rule.after and (rule.times is None or self._seen <= rule.after + rule.times)


def _named(name: str) -> Answer:
    if name not in ANSWERS:
        raise ValueError(f"answer is not one of {', '.join(ANSWERS)}")
    return ANSWERS[name]


class RequestLog:
    """What was asked: in total, per id, token, second and at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._ids: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._seconds: Counter[int] = Counter()
        self._tokens: dict[str, TokenLog] = {}
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=RECENT_REQUESTS)
        self._in_flight = 0
        self._max_in_flight = 0

    def arrived(self, user_id: str, token: str | None) -> TokenLog:
        now = self._clock()
        self._ids[user_id] += 1
        self._seconds[int(now - self._started)] += 1
        self._recent.append((now - self._started, user_id, token or ""))
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        counts = self._tokens.get(token or "")
        if counts is None:
            counts = self._tokens[token or ""] = TokenLog()
        counts.add(now)
        return counts

    def left(self, status: int) -> None:
        """One request is answered; a connection closed without an answer has status 0."""
        self._in_flight -= 1
        self._statuses[status] += 1

    def report(self, *, with_ids: bool = False) -> dict[str, Any]:
        """`requests`, `statuses` (0: closed without an answer), `seconds` (from the start of the log),
        `max_in_flight`, `tokens` with `requests` and `max_per_second`, the most in any second by time of
        arrival, and `recent`: `[second, id, token]` of the last requests."""
        report = {
            "requests": self._ids.total(),
            "statuses": {str(status): count for status, count in sorted(self._statuses.items())},
            "seconds": {str(second): count for second, count in self._seconds.items()},
            "max_in_flight": self._max_in_flight,
            "tokens": {
                token: {"requests": counts.requests, "max_per_second": counts.most}
                for token, counts in self._tokens.items()
            },
            "recent": list(self._recent),
        }
        return report | {"ids": dict(self._ids)} if with_ids else report


class TokenLog:
    """The requests of one token, and the most of them that came within any one second."""

    def __init__(self) -> None:
        self.requests = 0
        self.most = 0
        self._window: deque[float] = deque()

    def add(self, now: float) -> None:
        window = self._window
        window.append(now)
        while window[0] <= now - WINDOW_SECONDS:
            window.popleft()
        self.requests += 1
        self.most = max(self.most, len(window))

    @property
    def in_last_second(self) -> int:
        """As of the latest request."""
        return len(self._window)


class LineSimulator:
    """The ASGI app. The profile route is served without a framework: it must keep up with clients that
    are measured on the same machine."""

    def __init__(self, per_second: int | None = None) -> None:
        self.script = Script()
        self.log = RequestLog()
        self._per_second = per_second
        self._request_ids = 0
        self._control: ASGIApp = _control_app(self)

    def reset(self) -> None:
        self.script = Script()
        self.log = RequestLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PROFILE_PATH):
            await self._profile(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == INFO_PATH:
            await self._info(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    async def _profile(self, scope: Scope, receive: Receive, send: Send) -> None:
        user_id = scope["path"][len(PROFILE_PATH) :]
        headers = dict(scope["headers"])
        token = _bearer_token(headers)
        log, status = self.log, 0
        lately = log.arrived(user_id, token)
        try:
            answer, delay = self.script.choose(user_id, token)
            if delay:
                await asyncio.sleep(delay)
            if answer is USUAL:
                answer = self._usual(scope["method"], user_id, token, headers, lately)
            if answer.connection == "drop":
                await _drop(receive, send)
            else:
                status = await self._send(answer, user_id, send)
        finally:
            log.left(status)

    async def _info(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _bearer_token(dict(scope["headers"]))
        answer, delay = self.script.choose("", token)
        if delay:
            await asyncio.sleep(delay)
        if answer is USUAL:
            answer = BOT_INFO if token else UNAUTHORIZED
        if answer.connection == "drop":
            await _drop(receive, send)
        else:
            await self._send(answer, "", send)

    def _usual(
        self, method: str, user_id: str, token: str | None, headers: dict[bytes, bytes], lately: TokenLog
    ) -> Answer:
        if method != "GET":
            return METHOD_NOT_ALLOWED
        if token is None:
            return UNAUTHORIZED
        if self._per_second is not None and lately.in_last_second > self._per_second:
            return RATE_LIMIT
        if b"x-line-retry-key" in headers:
            return RETRY_KEY_REFUSED
        return USUAL if USER_ID.fullmatch(user_id) else INVALID_ID

    async def _send(self, answer: Answer, user_id: str, send: Send) -> int:
        status, body = _rendered(answer, user_id)
        self._request_ids += 1
        headers = [
            PLAIN_JSON
            if answer.content_type == "application/json"
            else _header("content-type", answer.content_type),
            (b"content-length", str(len(body)).encode()),
            (b"x-line-request-id", b"%08x-0000-4000-8000-000000000000" % self._request_ids),
            *(_header(name, value) for name, value in answer.headers.items()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if answer.connection == "cut":
            # A response that ends before its content-length makes the server close the connection.
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        else:
            await send({"type": "http.response.body", "body": body})
        return status


def create_app(*, per_second: int | None = None) -> LineSimulator:
    """A simulator with no rules and an empty log.

    With `per_second` a token's requests beyond that many within a second are answered 429, as LINE does.
    """
    return LineSimulator(per_second)


def profile_of(user_id: str) -> dict[str, str]:
    """The profile that a well-formed id has by default. Each optional field is absent from some."""
    seed = int(user_id[-6:], 16)
    profile = {"userId": user_id, "displayName": f"{NAMES[seed % len(NAMES)]} {user_id[-4:]}"}
    if seed % 3:
        profile["pictureUrl"] = f"https://profile.line-scdn.example/{user_id[-12:]}"
    if seed % 4 == 1:
        profile["statusMessage"] = STATUSES[seed // 4 % len(STATUSES)]
    if seed % 5:
        profile["language"] = LANGUAGES[seed // 5 % len(LANGUAGES)]
    return profile


def _rendered(answer: Answer, user_id: str) -> tuple[int, bytes]:
    if answer.profile is not None:
        return 200, msgspec.json.encode({"userId": user_id, **answer.profile})
    if answer.status is None:
        return 200, msgspec.json.encode(profile_of(user_id))
    if isinstance(answer.body, str):
        return answer.status, answer.body.encode()
    return answer.status, msgspec.json.encode(answer.body)


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    return name.lower().encode("latin-1"), value.encode("latin-1")


def _bearer_token(headers: dict[bytes, bytes]) -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.decode("latin-1") if scheme.lower() == b"bearer" and token else None


async def _drop(receive: Receive, send: Send) -> None:
    # ASGI has no way to close a connection unanswered; uvicorn's `send` is a method of the object that
    # holds the transport.
    cycle: Any = getattr(send, "__self__")  # noqa: B009 (a Send has no such attribute by type)
    cycle.transport.abort()
    await receive()  # returns once uvicorn has seen the connection go; leaving earlier would be answered 500


def _control_app(simulator: LineSimulator) -> Starlette:
    async def add_rule(request: Request) -> Response:
        try:
            simulator.script.add(msgspec.json.decode(await request.body(), type=Rule))
        except ValueError as error:
            return JSONResponse({"message": str(error)}, status_code=400)
        return Response(status_code=204)

    async def forget_rules(_: Request) -> Response:
        simulator.script.clear()
        return Response(status_code=204)

    async def tell_log(request: Request) -> Response:
        return JSONResponse(simulator.log.report(with_ids=request.query_params.get("ids") == "1"))

    async def reset(_: Request) -> Response:
        simulator.reset()
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/_simulator/rules", add_rule, methods=["POST"]),
            Route("/_simulator/rules", forget_rules, methods=["DELETE"]),
            Route("/_simulator/log", tell_log, methods=["GET"]),
            Route("/_simulator/reset", reset, methods=["POST"]),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then ends with status 0."""
    parser = argparse.ArgumentParser(prog="line_simulator", description="LINE's profile endpoint, simulated.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--per-second", type=int, help="answer 429 to what a token asks beyond this")
    options = parser.parse_args(arguments)
    for wanted in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again once it has stopped; the default would make that the exit status.
        signal.signal(wanted, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(per_second=options.per_second),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
