"""Whole days of the log become files, once each, and again only when rows came."""

from __future__ import annotations

from datetime import date, datetime

import psycopg
import pytest
from psycopg import sql

from activity_platform.activity import corpus
from activity_platform.activity.corpus import Corpus, path_of
from activity_platform.activity.corpus_export import ExportResult, export_days
from activity_platform.activity.rollup import fold
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, set_watermark

FIRST, SECOND = date(2026, 9, 14), date(2026, 9, 15)


@pytest.fixture
def files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return Corpus(bucket_of_its_own(environment, monkeypatch))


@pytest.fixture
def two_days(connection: psycopg.Connection, database_url: str) -> None:
    """Folded rows at the edges of two days, with every kind of content."""
    connection.execute(
        "INSERT INTO activity_events"
        " (user_id, verb, object_type, object_id, surface, context, created_at) VALUES"
        " ('ก😀', 'save', 'event', 'e\t\"1\n', 'feed', %s, '2026-09-14 23:59:59.999999Z'),"
        " ('bob', 'view', 'query', 'q', NULL, NULL, '2026-09-14 00:00:00Z'),"
        " ('ann', 'tap', 'user', 'bob', '', NULL, '2026-09-14 10:00:00Z'),"
        " ('ann', 'tap', 'user', 'bob', '', NULL, '2026-09-15 00:00:00Z')",
        ['{"rank": 1, "deep": [null, 1.5]}'],
    )
    fold(database_url, lag_seconds=0)


def _written(result: ExportResult) -> list[date]:
    return [day.day for day in result.days if day.written]


def _rows(files: Corpus, day: date) -> list[dict[str, object]]:
    with files.open(day) as file:
        rows: list[dict[str, object]] = file.read().to_pylist()
    return rows


@pytest.mark.usefixtures("two_days")
def test_a_file_holds_exactly_the_events_of_its_day_by_user_and_time(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    assert _written(export_days(database_url, files)) == [FIRST, SECOND]

    logged = connection.execute(
        "SELECT id, user_id, verb, object_type, object_id, surface, context::text, created_at, false"
        " FROM activity_events WHERE created_at < '2026-09-15Z' ORDER BY user_id, created_at"
    ).fetchall()
    assert [tuple(row.values()) for row in _rows(files, FIRST)] == logged
    assert [row["created_at"] for row in _rows(files, SECOND)] == [
        datetime.fromisoformat("2026-09-15T00:00Z")
    ]


@pytest.mark.usefixtures("two_days")
def test_the_manifest_counts_what_the_file_holds(files: Corpus, database_url: str) -> None:
    export_days(database_url, files)

    manifest = files.manifest(FIRST)
    assert manifest is not None
    assert (manifest.rows, manifest.late, manifest.folded) == (3, 0, 2)
    assert manifest.verbs == {"save": 1, "tap": 1, "view": 1}
    assert len(files.storage.get(path_of(FIRST), most_bytes=10**6)) == manifest.bytes
    assert files.intact(manifest)


@pytest.mark.usefixtures("two_days")
def test_an_unchanged_day_is_not_written_again(files: Corpus, database_url: str) -> None:
    export_days(database_url, files)
    again = export_days(database_url, files)
    assert (again.written, again.unchanged) == (0, 2)


def test_only_days_wholly_below_the_watermark_are_exported(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    add_event(connection, at="2026-09-14T12:00Z")
    set_watermark(connection, "'2026-09-14 23:59:59.999998Z'")
    assert export_days(database_url, files).days == ()
    with pytest.raises(TransientFailure, match="2026-09-14 is not wholly folded"):
        export_days(database_url, files, [FIRST])
    set_watermark(connection, "'2026-09-14 23:59:59.999999Z'")
    assert _written(export_days(database_url, files, [FIRST])) == [FIRST]


@pytest.mark.usefixtures("two_days")
def test_rows_that_came_to_an_exported_day_are_added_as_late(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    for verb in ("save", "view"):
        add_event(connection, user="late", verb=verb, at="2026-09-14T11:00Z")

    assert _written(export_days(database_url, files)) == [FIRST]

    assert [(row["user_id"], row["verb"], row["late"]) for row in _rows(files, FIRST)] == [
        *[("ann", "tap", False), ("bob", "view", False)],
        *[("late", "save", True), ("late", "view", False), ("ก😀", "save", False)],
    ]
    assert export_days(database_url, files).written == 0


@pytest.mark.usefixtures("two_days")
def test_rows_that_came_late_before_the_export_are_known_by_their_slice(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    for target in ("x", "y"):
        add_event(connection, target, user="late", at="2026-09-14T11:00Z")
    export_days(database_url, files)

    assert [row["user_id"] for row in _rows(files, FIRST) if row["late"]] == ["late", "late"]
    manifest = files.manifest(FIRST)
    assert manifest is not None
    assert (manifest.rows, manifest.late, manifest.folded) == (5, 2, 2)


@pytest.mark.usefixtures("two_days")
def test_what_the_log_no_longer_holds_stays_in_the_corpus(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    connection.execute("DELETE FROM activity_events WHERE created_at < '2026-09-15Z'")
    assert export_days(database_url, files, [FIRST]).written == 0
    add_event(connection, user="late", at="2026-09-14T11:00Z")
    assert _written(export_days(database_url, files)) == [FIRST]

    assert len(_rows(files, FIRST)) == 4
    assert export_days(database_url, files).written == 0


@pytest.mark.usefixtures("two_days")
def test_a_writer_that_was_killed_between_file_and_manifest_is_put_right(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    old = files.storage.get(path_of(FIRST, corpus.MANIFEST), most_bytes=10**6)
    add_event(connection, user="late", at="2026-09-14T11:00Z")
    export_days(database_url, files)
    files.storage.put(path_of(FIRST, corpus.MANIFEST), old, content_type="application/json")
    stale = files.manifest(FIRST)
    assert stale is not None
    assert not files.intact(stale)

    assert len(export_days(database_url, files).days) == 2

    manifest = files.manifest(FIRST)
    assert manifest is not None
    assert (manifest.rows, manifest.late) == (4, 1)
    assert files.intact(manifest)


@pytest.mark.usefixtures("two_days")
def test_a_file_whose_manifest_is_gone_loses_nothing(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    files.storage.delete(path_of(FIRST, corpus.MANIFEST))
    connection.execute("DELETE FROM activity_events WHERE created_at < '2026-09-15Z'")
    add_event(connection, user="late", at="2026-09-14T11:00Z")
    export_days(database_url, files)
    assert [row["late"] for row in _rows(files, FIRST)] == [False, False, True, False]


@pytest.mark.usefixtures("two_days")
def test_a_file_that_is_no_parquet_is_named(files: Corpus, database_url: str) -> None:
    export_days(database_url, files)
    files.storage.put(path_of(FIRST), b"junk", content_type="text/plain")
    with pytest.raises(PermanentFailure, match=r"dt=2026-09-14/events.parquet is not a Parquet file"):
        export_days(database_url, files)


@pytest.mark.usefixtures("two_days")
def test_a_file_that_is_gone_is_written_from_the_log_or_named(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    files.storage.delete(path_of(FIRST))
    assert _written(export_days(database_url, files)) == [FIRST]

    files.storage.delete(path_of(FIRST))
    connection.execute("DELETE FROM activity_events WHERE user_id = 'bob'")
    with pytest.raises(PermanentFailure, match="2026-09-14 is gone"):
        export_days(database_url, files)


@pytest.mark.usefixtures("two_days")
def test_row_groups_end_where_contexts_are_large(
    files: Corpus, database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "GROUP_BYTES", 1)
    connection.execute(
        "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
        " SELECT 'u' || n, 'view', 'event', 'e', '2026-09-14Z' FROM generate_series(1, 6000) AS n"
    )
    export_days(database_url, files)
    with files.open(FIRST) as file:
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [5000, 1003]


def test_a_day_is_a_day_of_utc_whatever_the_session_speaks(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    database = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Bangkok'").format(database))
    add_event(connection, at="2026-09-14T23:30Z")
    set_watermark(connection, "'2026-10-01Z'")
    assert _written(export_days(database_url, files)) == [FIRST]
