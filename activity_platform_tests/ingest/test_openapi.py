"""The description of the API is true: schemathesis generates from it what should work and what should not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from activity_platform_tests.ingest.served import Served


def schemathesis(api: Served, directory: Path, examples: int, *phases: str) -> int:
    """Runs all checks and returns how many requests were made. Fails with its report."""
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        *("run", f"{api.url}/openapi.json", "--checks", "all", "--max-examples", str(examples)),
        *("--phases", ",".join(phases), "--generation-database", "none", "--no-color"),
        *("--header", f"Authorization: Bearer {api.token('schemathesis', scope='edges:read')}"),
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated, done.stdout
    return int(generated[1])


def test_the_description_holds(api: Served, tmp_path: Path) -> None:
    assert schemathesis(api, tmp_path, 1, "coverage") > 100


@pytest.mark.heavy
def test_the_description_holds_for_thousands_of_examples(api: Served, tmp_path: Path) -> None:
    assert schemathesis(api, tmp_path, 1_800, "examples", "coverage", "fuzzing") >= 3_000
    assert "Traceback" not in api.log.read_text()


def test_it_names_every_path_and_no_other(api: Served) -> None:
    document = api.client.get(f"{api.url}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method in methods:
            assert api.client.request(method, api.url + path).status_code in (200, 401), (method, path)
