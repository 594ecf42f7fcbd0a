"""A pooler in transaction mode, as small as one can be: each transaction goes to any server process.

Sessions log in on server processes of their own, which then belong to all. It may also claim another
`server_version` than the server has.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

PLAIN_ONLY = (80877103, 80877104)  # a client asks for TLS or GSSAPI; the answer N means: without
NEEDS_ANSWER = (3, 5, 10, 11)  # kinds of authentication request to which the client says something


@contextmanager
def transaction_pooler(database_url: str, *, server_version: str | None = None) -> Iterator[str]:
    """The same database behind a pooler that runs meanwhile."""
    address = urlsplit(database_url)
    pooler = _Pooler((str(address.hostname), address.port or 5432), server_version)
    try:
        yield psycopg.conninfo.make_conninfo(database_url, port=pooler.port, sslmode="disable")
    finally:
        pooler.close()


class _Pooler:
    def __init__(self, server: tuple[str, int], server_version: str | None) -> None:
        self._server = server
        self._version = server_version
        self._idle: list[_Stream] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for stream in self._idle:
            stream.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(_Stream(client),), daemon=True).start()

    def _serve(self, client: _Stream) -> None:
        try:
            self._log_in(client)
            kept: _Stream | None = None
            while request := _request(client):
                server = kept or self._idle.pop()
                server.socket.sendall(request)
                kept = server if self._relay(server, client) != b"I" else None
                if kept is None:
                    self._idle.append(server)
        except OSError:
            pass
        finally:
            client.socket.close()

    def _log_in(self, client: _Stream) -> None:
        startup = client.untyped()
        while struct.unpack("!i", startup[4:8])[0] in PLAIN_ONLY:
            client.socket.sendall(b"N")
            startup = client.untyped()
        server = _Stream(socket.create_connection(self._server))
        server.socket.sendall(startup)
        self._relay(server, client)
        self._idle.append(server)

    def _relay(self, server: _Stream, client: _Stream) -> bytes:
        """Passes on what the server says until it is ready; the state of its transaction."""
        while True:
            kind, body = server.message()
            if self._version and body.startswith(b"server_version\0"):
                body = b"server_version\0" + self._version.encode() + b"\0"
            client.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)
            if kind == b"Z":
                return body
            if kind == b"R" and struct.unpack("!i", body[:4])[0] in NEEDS_ANSWER:
                answer, said = client.message()
                server.socket.sendall(answer + struct.pack("!i", len(said) + 4) + said)


def _request(client: _Stream) -> bytes:
    """Messages up to the one after which the server answers; empty when the client leaves."""
    collected = b""
    while True:
        kind, body = client.message()
        if kind == b"X":
            return b""
        collected += kind + struct.pack("!i", len(body) + 4) + body
        if kind in (b"S", b"Q"):
            return collected


class _Stream:
    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def untyped(self) -> bytes:
        length = self._exactly(4)
        return length + self._exactly(struct.unpack("!i", length)[0] - 4)

    def message(self) -> tuple[bytes, bytes]:
        kind = self._exactly(1)
        (length,) = struct.unpack("!i", self._exactly(4))
        return kind, self._exactly(length - 4)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the other side left")
            data += piece
        return data
