"""The examples of docs/training.md, run in their order on a corpus in S3."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from activity_platform.activity.corpus import FILE, MANIFEST, Corpus, path_of
from activity_platform.activity.corpus_export import export_days
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import set_watermark
from activity_platform_tests.docs.markdown import DOCS, fenced

ROWS = """
    INSERT INTO activity_events (user_id, verb, object_type, object_id, context, created_at) VALUES
    ('ann', 'save', 'event', 'e1', '{"rank": 1}', '2026-09-14 10:00Z'),
    ('bob', 'save', 'event', 'e1', '{"rank": 4}', '2026-09-14 11:00Z'),
    ('ann', 'view', 'event', 'e2', NULL, '2026-09-15 10:00Z'),
    ('ann', 'save', 'event', 'e2', NULL, '2026-08-31 10:00Z')
"""


@pytest.fixture
def files(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    connection: psycopg.Connection,
    database_url: str,
) -> Corpus:
    """A corpus of three days, where the environment says."""
    files = Corpus(bucket_of_its_own(environment, monkeypatch))
    for name in ("S3_BUCKET", "S3_ENDPOINT_URL"):
        monkeypatch.setenv(name, environment[name])
    connection.execute(ROWS)
    set_watermark(connection, "'2026-10-01Z'")
    export_days(database_url, files)
    return files


def _copy(files: Corpus, directory: Path) -> None:
    for day in files.days():
        (directory / f"dt={day}").mkdir(parents=True)
        for name in (FILE, MANIFEST):
            with (directory / f"dt={day}" / name).open("wb") as file:
                files.storage.get_file(path_of(day, name), file)


def test_each_example_reads_what_was_exported(files: Corpus, tmp_path: Path) -> None:
    _copy(files, tmp_path / "corpus")
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        for code in fenced((DOCS / "training.md").read_text(), "python"):
            exec(compile(code, "docs/training.md", "exec"), names)

    assert names["events"].count_rows() == 4
    assert set(names["events"].to_table()["dt"].to_pylist()) == {
        datetime.date(2026, 8, 31),
        datetime.date(2026, 9, 14),
        datetime.date(2026, 9, 15),
    }
    assert names["saves"] == 2
    assert names["day"]["context"].tolist() == [{"rank": 1}, {"rank": 4}]
    assert names["september"]["user_id"].tolist() == ["ann", "bob", "ann"]
    assert names["by_verb"] == [("save", 2, 2.5), ("view", 1, None)]
    assert names["users"] == [(2,)]
    assert names["manifest"]["verbs"] == {"save": 2}
