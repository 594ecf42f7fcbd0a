"""A month is archived, dropped and read back by DuckDB, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import psycopg
import pytest

from activity_platform.activity import corpus
from activity_platform.activity.corpus import Corpus
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import fill_september, set_watermark

IN_NOVEMBER = datetime(2026, 11, 5, tzinfo=UTC)
SEPTEMBER = "activity_events_y2026m09"
MOST_MEGABYTES = 300

#: Maintenance in a process of its own, which then says how much memory it had at most. (The count of
#: `getrusage` would include the process that started it.)
MAINTAIN = """
import json, os, re, sys
from datetime import datetime
from pathlib import Path
from activity_platform.activity.maintenance import maintain_log
from activity_platform.settings import Settings
result = maintain_log(Settings.load(os.environ), now=datetime.fromisoformat(sys.argv[1]))
kilobytes = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"dropped": result.dropped, "failed": result.failed, "megabytes": kilobytes / 1024}))
"""


@pytest.fixture
def files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return Corpus(bucket_of_its_own(environment, monkeypatch))


def _maintain(environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", MAINTAIN, IN_NOVEMBER.isoformat()],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _sums_of_the_log(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    return connection.execute(
        "SELECT verb, count(*), sum(id)::bigint, count(context), sum((context ->> 'rank')::int)::bigint,"
        " count(DISTINCT user_id), min(created_at), max(created_at)"
        " FROM activity_events GROUP BY verb ORDER BY verb"
    ).fetchall()


def _sums_of_the_files(files: Corpus, directory: Path) -> list[tuple[object, ...]]:
    for day in files.days():
        folder = directory / f"dt={day}"
        folder.mkdir()
        for name in (corpus.FILE, corpus.MANIFEST):
            with (folder / name).open("wb") as file:
                files.storage.get_file(corpus.path_of(day, name), file)
    with duckdb.connect() as database:
        database.execute("SET timezone = 'UTC'")
        return database.execute(
            "SELECT verb, count(*), sum(id)::bigint, count(context),"
            " sum((context ->> '$.rank')::int)::bigint,"
            " count(DISTINCT user_id), min(created_at), max(created_at)"
            f" FROM read_parquet('{directory}/dt=*/*.parquet', hive_partitioning = true)"
            " WHERE dt BETWEEN DATE '2026-09-01' AND DATE '2026-09-30' GROUP BY verb ORDER BY verb"
        ).fetchall()


def _archive_and_compare(
    files: Corpus, connection: psycopg.Connection, environment: dict[str, str], directory: Path
) -> dict[str, float]:
    set_watermark(connection, "'2026-11-01Z'")
    logged = _sums_of_the_log(connection)
    result = _maintain(environment)
    assert (result["dropped"], result["failed"]) == (1, 0)
    assert connection.execute("SELECT to_regclass(%s)", [SEPTEMBER]).fetchone() == (None,)
    assert _sums_of_the_files(files, directory) == logged
    return result


def test_a_dropped_month_is_read_back_with_equal_sums(
    files: Corpus,
    connection: psycopg.Connection,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    fill_september(connection, 3_000, days=3)
    _archive_and_compare(files, connection, environment, tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_thirty_days_of_200_000_events_take_less_than_300_mb(
    files: Corpus,
    connection: psycopg.Connection,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    fill_september(connection, 30 * 200_000)
    result = _archive_and_compare(files, connection, environment, tmp_path)
    assert result["megabytes"] < MOST_MEGABYTES, result
