"""The demo's traffic over the stack of docker-compose.yml; runs inside its network, fed on standard input.

Ends with status 0 once every path has delivered exactly what was sent.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

from activity_platform.failures import PlatformError
from activity_platform.local.demo import Demo
from activity_platform.settings import Settings

API_URL = "http://ingest:8000"
UI_URL = "http://webserver:3000"


def main() -> int:
    demo = Demo(Settings.load(os.environ), API_URL, UI_URL, Console(stderr=True))
    try:
        demo.run(look=lambda: None)
    except PlatformError as error:
        print(f"compose-test: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


sys.exit(main())
