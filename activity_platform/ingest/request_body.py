"""Reading a request's body: its type, its encoding, and never more of it than the limit.

The checks come in the contract's order: 415 before a byte is read, 413 as soon as it shows (declared, read
or inflated), 400 for a body that does not inflate. A body that stalls ends with 408.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request

from activity_platform.ingest.problems import Problem

MAX_BODY_BYTES = 1024 * 1024
STALL_SECONDS = 30.0

#: The labels of UTF-8 in the WHATWG Encoding Standard, and Python's own spelling.
UTF8_LABELS = {
    "utf-8", "utf8", "utf_8", "unicode-1-1-utf-8", "unicode11utf8", "unicode20utf8", "x-unicode20utf8",
}  # fmt: skip

GZIP = {"gzip", "x-gzip"}  # RFC 9110 section 8.4.1.3: the second is another name for the first
MAX_GZIP_MEMBERS = 100  # each costs a copy of what follows it
GZIP_WINDOW = 16 + zlib.MAX_WBITS


async def read_json_body(request: Request) -> bytes:
    """The body, inflated. Raises `Problem` with 415, 413, 408 or 400."""
    if not _is_json(",".join(request.headers.getlist("content-type"))):
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The content type is not application/json in UTF-8.")
    compressed = _is_gzip(",".join(request.headers.getlist("content-encoding")))
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise _too_large()
    chunks = _chunks(request)
    return await (_inflate(chunks) if compressed else _collect(chunks))


@functools.lru_cache(maxsize=256)
def _is_json(content_type: str) -> bool:
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = {value for name, _, value in (p.partition("=") for p in parameters) if name == "charset"}
    return media_type == "application/json" and {charset.strip('"') for charset in charsets} <= UTF8_LABELS


def _is_gzip(content_encoding: str) -> bool:
    codings = [coding for part in content_encoding.split(",") if (coding := part.strip().lower())]
    codings = [coding for coding in codings if coding != "identity"]
    if not codings:
        return False
    if len(codings) > 1 or codings[0] not in GZIP:
        # RFC 9110 section 12.5.3: Accept-Encoding tells the client what would be taken.
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "The content encoding is not gzip.",
            headers={"Accept-Encoding": "gzip"},
        )
    return True


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                message = await request.receive()
        except TimeoutError:
            raise Problem(
                HTTPStatus.REQUEST_TIMEOUT, f"Nothing of the body came for {STALL_SECONDS:g} s.", close=True
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _collect(chunks: AsyncIterator[bytes]) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(chunk)
    return b"".join(parts)


async def _inflate(chunks: AsyncIterator[bytes]) -> bytes:
    inflater = Inflater()
    parts: list[bytes] = []
    try:
        async for chunk in chunks:
            parts.extend(inflater.feed(chunk))
    except zlib.error:
        raise _not_gzip() from None
    if not inflater.complete:
        raise _not_gzip()
    return b"".join(parts)


class Inflater:
    """RFC 1952: one member or some, each complete, and nothing behind them."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(GZIP_WINDOW)
        self._members = 1
        self._read = self._inflated = 0

    @property
    def complete(self) -> bool:
        return self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` inflates to. Stops with 413 at the limit, however much more there would be."""
        self._read += len(data)
        while data:
            if self._member.eof:
                self._next_member()
            piece = self._member.decompress(data, MAX_BODY_BYTES + 1 - self._inflated)
            self._inflated += len(piece)
            if max(self._read, self._inflated) > MAX_BODY_BYTES:
                raise _too_large()
            yield piece
            data = self._member.unused_data

    def _next_member(self) -> None:
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise _not_gzip()
        self._member = zlib.decompressobj(GZIP_WINDOW)


def _not_gzip() -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, "The body is not complete gzip, as its content encoding says.")


def _too_large() -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {MAX_BODY_BYTES} bytes, inflated or not.",
    )
