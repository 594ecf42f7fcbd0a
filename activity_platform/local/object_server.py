"""The S3 of the embedded stack: moto's server, with its objects kept across restarts.

moto holds everything in memory. After each request that changes an object, its present content is written
to an SQLite file; at the start all its rows are put back. Run as a script:

    python -m activity_platform.local.object_server [--host H] --port P --file F --bucket B
"""

from __future__ import annotations

import argparse
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import S3Backend, s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

from activity_platform.local.server import HOST

REGION = "us-east-1"
CHANGES = ("PUT", "POST", "DELETE")

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class ObjectFile:
    """The file that mirrors moto's buckets: one row an object."""

    def __init__(self, path: Path, backend: S3Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._rows.execute(
            "CREATE TABLE IF NOT EXISTS object (bucket TEXT, key TEXT, body BLOB, PRIMARY KEY (bucket, key))"
        )

    def restore(self) -> None:
        """Puts every row back as an object."""
        for bucket, key, body in self._rows.execute("SELECT bucket, key, body FROM object"):
            self.ensure_bucket(bucket)
            self._backend.put_object(bucket, key, body)

    def ensure_bucket(self, name: str) -> None:
        if name not in self._backend.buckets:
            self._backend.create_bucket(name, REGION)

    def mirror(self, bucket: str, key: str) -> None:
        """Makes the row say what the object says now."""
        with self._lock:
            found = self._backend.get_object(bucket, key) if bucket in self._backend.buckets else None
            if found is None:
                self._rows.execute("DELETE FROM object WHERE bucket = ? AND key = ?", (bucket, key))
            else:
                self._rows.execute("REPLACE INTO object VALUES (?, ?, ?)", (bucket, key, found.value))


def mirrored(app: WsgiApp, file: ObjectFile) -> WsgiApp:
    """`app`, with each changed object written to the file before the answer is complete."""

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = list(app(environ, start_response))
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        part_of_upload = "partNumber=" in environ["QUERY_STRING"]  # the object changes with the last one
        if environ["REQUEST_METHOD"] in CHANGES and bucket and key and not part_of_upload:
            file.mirror(bucket, key.encode("latin-1").decode("utf-8"))  # PEP 3333: bytes as latin-1
        return answer

    return call


class _QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Says nothing: a key may name a person's file."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--bucket", required=True)
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)

    file = ObjectFile(options.file, s3_backends[DEFAULT_ACCOUNT_ID]["aws"])
    file.restore()
    file.ensure_bucket(options.bucket)
    app = DomainDispatcherApplication(create_backend_app)
    make_server(
        options.host, options.port, mirrored(app, file), threaded=True, request_handler=_QuietHandler
    ).serve_forever()


if __name__ == "__main__":
    main()
