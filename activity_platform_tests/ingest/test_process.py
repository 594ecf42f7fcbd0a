"""A stop whose order of events decides; no running process can be made to keep it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from activity_platform.ingest.process import Server
from activity_platform.ingest.protocol import PoliteProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER_SECONDS = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(ANSWER_SECONDS)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def accepted(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of a connection that the server's listener hands over now."""
    clients_end, servers_end = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: PoliteProtocol(server.config, server.server_state, {}), servers_end
    )
    return await asyncio.open_connection(sock=clients_end)


async def answers_to_a_client_that_comes_during_the_stop() -> list[bytes]:
    """Its request's answer, and what comes of the next one on the same connection."""
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    server = Server(config, lambda: None, ())
    server.lifespan = config.lifespan_class(config)
    server.servers = []
    _, busy = await accepted(server)
    busy.write(REQUEST)
    await asyncio.sleep(ANSWER_SECONDS / 3)
    stopping = asyncio.create_task(server.shutdown())
    await asyncio.sleep(ANSWER_SECONDS / 3)
    reader, late = await accepted(server)
    late.write(REQUEST)
    first = await reader.readuntil(b"\r\n\r\n")
    late.write(REQUEST)
    rest = await reader.read()
    late.close()
    busy.close()
    await stopping
    return [first, rest]


def test_a_connection_accepted_during_the_stop_is_answered_and_ended() -> None:
    first, rest = asyncio.run(answers_to_a_client_that_comes_during_the_stop())
    assert first.startswith(b"HTTP/1.1 204 ")
    assert b"connection: close" in first
    assert rest == b""
