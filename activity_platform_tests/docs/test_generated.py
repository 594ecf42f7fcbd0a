"""What is generated in the documents is what the code says today.

After a wanted change: `UPDATE_SNAPSHOT=1 .venv/bin/pytest activity_platform_tests/docs/test_generated.py`,
and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import psycopg
import pytest

from activity_platform_tests.docs import api, configuration, data_model, operation, vocabulary
from activity_platform_tests.docs.markdown import DOCS, blocks, regenerated

LANGUAGES = {"py": "python", "ts": "ts", "go": "go"}

Maker = Callable[[], str]


@pytest.fixture
def makers(connection: psycopg.Connection) -> dict[str, Maker]:
    """What makes each block, by its name."""
    return {
        "variables": configuration.variables,
        "needs of domains": configuration.needs,
        "operations": api.operations,
        "schemas": api.schemas,
        "verbs": vocabulary.verbs,
        "object types": vocabulary.object_types,
        "schedules and sensors": operation.starters,
        "limits": operation.limits,
        "metrics": operation.metrics,
        "tables": lambda: data_model.tables(connection),
        "personal data": data_model.personal_data,
        **{f"examples/{path.name}": _code(path.name) for path in (DOCS / "examples").iterdir()},
    }


def _code(name: str) -> Maker:
    language = LANGUAGES.get(name.rpartition(".")[2], "")
    return lambda: f"```{language}\n{(DOCS / 'examples' / name).read_text().strip()}\n```"


def test_the_documents_are_as_generated(makers: dict[str, Maker]) -> None:
    for document in sorted(DOCS.glob("*.md")):
        written = document.read_text()
        made = regenerated(written, makers)
        if os.environ.get("UPDATE_SNAPSHOT"):
            document.write_text(made)
        else:
            assert written == made, f"{document.name} is not as generated"


def test_every_generated_part_has_its_place(makers: dict[str, Maker]) -> None:
    placed = [name for document in DOCS.glob("*.md") for name in blocks(document.read_text())]
    assert sorted(placed) == sorted(makers)
