"""Nothing happens at import: no environment is read, nothing is opened, no thread is started."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import activity_platform

#: Alembic runs this one; it is no module to import.
NOT_MODULES = {"activity_platform.migrations.env"}

CODE = """
import importlib, socket, sys, threading
def refuse(*_): raise AssertionError("opened a socket at import")
socket.socket.connect = socket.socket.connect_ex = refuse
for name in sys.argv[1:]:
    importlib.import_module(name)
extra = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
assert not extra, extra
"""


def test_every_module_imports_without_environment_network_or_threads() -> None:
    found = pkgutil.walk_packages(activity_platform.__path__, "activity_platform.")
    names = [module.name for module in found if module.name not in NOT_MODULES]
    assert "activity_platform.definitions" in names
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:activity_platform", "-c", CODE, *names],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
