"""LINE's Messaging API: reading the profile of a user (`GET /v2/bot/profile/{userId}`), and trying a token.

A definite answer is returned, everything else is raised as the kind of failure it is. No message holds the
token or a whole LINE id; each one names LINE's request id, which LINE's support asks for.

LINE takes the header X-Line-Retry-Key only where messages are sent and refuses it here, so it is never sent.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from activity_platform import USER_AGENT
from activity_platform.failures import PermanentFailure, TransientFailure

CONNECTIONS = 100
TIMEOUT = httpx.Timeout(connect=5, read=10, write=5, pool=10)
TOTAL_SECONDS = 20.0  # the read timeout starts anew with each byte, so a trickling answer needs a bound too
KEEPALIVE_SECONDS = 30

TOKEN = re.compile(r"[\x21-\x7e]+")  # what an Authorization header can carry: RFC 6750 2.1, generously
#: PostgreSQL's text can hold neither.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Profile:
    """A user's main profile. None: no picture, no status message, no consent to tell the language."""

    user_id: str
    display_name: str
    picture_url: str | None = None
    status_message: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class NotFound:
    """LINE has no profile of this id for this channel: unknown, blocked, no friend or no consent (404), or
    no id at all (400). LINE doesn't tell these apart, and asking again changes nothing."""

    user_id: str
    status: int
    request_id: str | None = None


class Refused(PermanentFailure):
    """LINE won't answer any further request of this channel either: a run must stop."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(_with_request_id(message, request_id))
        self.request_id = request_id


class Unauthorized(Refused):
    """The channel access token is not valid (401) or may not read profiles (403)."""


class MonthlyLimit(Refused):
    """The account's monthly limit is used up (one of the two kinds of 429)."""


class NoAnswer(TransientFailure):
    """LINE gave no answer about this id; the same request may get one later."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(_with_request_id(message, request_id))
        self.request_id = request_id


class RateLimited(NoAnswer):
    """The channel asked faster than LINE allows (the other kind of 429).

    `retry_after` are the seconds that LINE asks to wait, which it seldom says.
    """

    def __init__(self, message: str, request_id: str | None, retry_after: float | None) -> None:
        super().__init__(message, request_id)
        self.retry_after = retry_after


class Unavailable(NoAnswer):
    """A 5xx, a timeout, a lost connection, or a 200 whose body is no profile of the user."""


class LineApi:
    """The API as one channel sees it, over kept connections. One a run, entered with `async with`.

    `connections` bounds the requests under way at once; further ones wait. Raises `Unauthorized` for a
    token that no header can carry.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        connections: int = CONNECTIONS,
        timeout: httpx.Timeout = TIMEOUT,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        if not TOKEN.fullmatch(token):
            raise Unauthorized("the channel access token is empty or holds characters that no token has")
        self._profile_url = f"{base_url.rstrip('/')}/v2/bot/profile/"
        self._info_url = f"{base_url.rstrip('/')}/v2/bot/info"
        self._headers = httpx.Headers(
            {
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Accept-Encoding": "gzip, deflate",
                "User-Agent": USER_AGENT,
            }
        )
        self._extensions = {"timeout": timeout.as_dict()}
        self._connections = connections
        self._total_seconds = total_seconds

    async def __aenter__(self) -> Self:
        self._transport: httpx.AsyncBaseTransport = AiohttpTransport(client=_session(self._connections))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.aclose()

    async def get_profile(self, user_id: str) -> Profile | NotFound:
        """What LINE knows of the user. Raises a kind of `NoAnswer` or of `Refused`."""
        response = await self._get(self._profile_url + quote(user_id, safe=""), masked(user_id))
        return _understood(response, user_id)

    async def check_token(self) -> None:
        """Asks LINE about the channel itself. Raises a kind of `NoAnswer` or of `Refused`."""
        response = await self._get(self._info_url, "the channel")
        if response.status_code != 200:
            raise _failure(response, "the channel")

    async def _get(self, url: str, about: str) -> httpx.Response:
        try:
            async with asyncio.timeout(self._total_seconds):
                return await self._send(url)
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            # The transport reports a lost connection as a timeout; the error beneath has the right name.
            beneath = error.__cause__ if isinstance(error, httpx.HTTPError) else None
            name = type(beneath or error).__name__
            raise Unavailable(f"no answer from LINE about {about} ({name})") from error

    async def _send(self, url: str) -> httpx.Response:
        # Without an AsyncClient: its cookies, redirects and merged addresses are for nothing here, and took a
        # quarter of a run's CPU time. It also logs each address at INFO, and the address holds the LINE id.
        request = httpx.Request("GET", url, headers=self._headers, extensions=self._extensions)
        async with aclosing(await self._transport.handle_async_request(request)) as response:
            await response.aread()
        return response


def masked(user_id: str) -> str:
    """Enough of a LINE id to recognize it next to a file, not enough to address anybody: `U12ab…`."""
    return f"{user_id[:5]}…"


def _session(connections: int) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections, keepalive_timeout=KEEPALIVE_SECONDS, ssl=httpx.create_ssl_context()
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    # On a lost connection aiohttp would send a GET once more by itself: a request that nobody has a permit
    # for. It has no public switch; its own test client turns it off the same way.
    session._retry_connection = False
    return session


def _understood(response: httpx.Response, user_id: str) -> Profile | NotFound:
    status = response.status_code
    request_id = response.headers.get("x-line-request-id")
    if status == 200:
        return _profile(response, user_id, request_id)
    if status in (400, 404):
        return NotFound(user_id, status, request_id)
    raise _failure(response, masked(user_id))


def _failure(response: httpx.Response, about: str) -> Refused | NoAnswer:
    status = response.status_code
    request_id = response.headers.get("x-line-request-id")
    if status == 401:
        message = "LINE refused the channel access token (401): give the OA a valid one"
        return Unauthorized(message, request_id)
    if status == 403:
        return Unauthorized("LINE doesn't let this channel read profiles (403): check its plan", request_id)
    if status == 429:
        return _limit(response, request_id)
    return Unavailable(f"LINE answered {status} about {about}", request_id)


def _profile(response: httpx.Response, user_id: str, request_id: str | None) -> Profile:
    # The standard decoder, because it lets a lone surrogate pass: one odd name must not lose its owner.
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        message = f"LINE answered 200 without JSON about {masked(user_id)}"
        raise Unavailable(message, request_id) from error
    match body:
        case {"userId": str(answered), "displayName": str(name)} if answered == user_id:
            return Profile(
                user_id=user_id,
                display_name=_storable(name),
                picture_url=_optional(body.get("pictureUrl")),
                status_message=_optional(body.get("statusMessage")),
                language=_optional(body.get("language")),
            )
    raise Unavailable(f"LINE answered 200 without a profile of {masked(user_id)}", request_id)


def _limit(response: httpx.Response, request_id: str | None) -> MonthlyLimit | RateLimited:
    # Only the text tells the two kinds apart.
    if b"monthly limit" in response.content.lower():
        return MonthlyLimit("the monthly limit of this LINE account is used up (429)", request_id)
    return RateLimited(
        "LINE's rate limit was exceeded (429)", request_id, _seconds(response.headers.get("retry-after", ""))
    )


def _seconds(retry_after: str) -> float | None:
    """The header's form in seconds (RFC 9110 10.2.3); its other form, a date, counts as none."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None


def _optional(value: Any) -> str | None:
    # LINE asks its callers to bear changes of the structure: an optional field of another type is absent.
    return _storable(value) or None if isinstance(value, str) else None


def _storable(text: str) -> str:
    return UNSTORABLE.sub("", text)


def _with_request_id(message: str, request_id: str | None) -> str:
    return f"{message}; X-Line-Request-Id {request_id}" if request_id else message
