"""What becomes of a connection whose request was answered before its body was read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The rest of a body of at most this declared length is read and thrown away, and the connection lives on.
DRAINED_BYTES = 64 * 1024


class EndUnreadBodies:
    """ASGI middleware: ends the connection behind an answer to a body that is not worth reading to its end.

    That is a long one, one of unknown length, or one that the client holds back until it reads 100.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_outlive_its_answer(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        unread = True

        async def receive_and_note() -> Message:
            nonlocal unread
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def send_and_end(message: Message) -> None:
            if message["type"] == "http.response.start" and unread:
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive_and_note, send_and_end)


def _may_outlive_its_answer(headers: Headers) -> bool:
    return (
        int(headers.get("content-length", "0")) > DRAINED_BYTES
        or "transfer-encoding" in headers
        or "expect" in headers
    )
