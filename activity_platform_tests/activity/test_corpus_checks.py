"""What the checks of the training corpus see."""

from __future__ import annotations

from datetime import date, timedelta

import psycopg
import pytest

from activity_platform.activity.corpus import Corpus, path_of
from activity_platform.activity.corpus_checks import check_days, check_gaps
from activity_platform.activity.corpus_export import export_days
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, set_watermark

FIRST, SECOND = date(2026, 9, 14), date(2026, 9, 16)
NONE = timedelta(0)


@pytest.fixture
def files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return Corpus(bucket_of_its_own(environment, monkeypatch))


@pytest.fixture
def two_days(connection: psycopg.Connection) -> None:
    for day in (FIRST, SECOND):
        add_event(connection, at=f"{day}T12:00Z", times=3)
    set_watermark(connection, "'2026-09-17Z'")


def _differing(connection: psycopg.Connection, files: Corpus) -> tuple[date, ...]:
    return check_days(connection, files, grace=NONE).differing


@pytest.mark.usefixtures("two_days")
def test_a_late_row_or_a_lost_file_shows_until_the_next_export(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    assert _differing(connection, files) == (FIRST, SECOND)
    export_days(database_url, files)
    found = check_days(connection, files, grace=NONE)
    assert (found.passed, found.compared, found.rows) == (True, 2, 6)

    add_event(connection, at="2026-09-14T13:00Z")
    assert _differing(connection, files) == (FIRST,)
    export_days(database_url, files)
    assert _differing(connection, files) == ()

    files.storage.delete(path_of(SECOND))
    assert _differing(connection, files) == (SECOND,)


@pytest.mark.usefixtures("two_days")
def test_a_day_has_some_time_to_be_exported(files: Corpus, connection: psycopg.Connection) -> None:
    assert check_days(connection, files, grace=timedelta(hours=12)).differing == (FIRST,)


@pytest.mark.usefixtures("two_days")
def test_a_folded_month_of_which_nothing_is_left_is_a_gap(
    files: Corpus, database_url: str, connection: psycopg.Connection
) -> None:
    export_days(database_url, files)
    connection.execute("DELETE FROM activity_events")
    connection.execute(
        "INSERT INTO activity_rollup_slice (name, lower, upper, events, edges) VALUES"
        " ('interaction_edges', '2026-07-02Z', '2026-07-30Z', 5, 5),"
        " ('interaction_edges', '2026-08-02Z', '2026-08-30Z', 0, 5),"
        " ('interaction_edges', '2026-09-14Z', '2026-09-17Z', 6, 2),"
        " ('interaction_edges', '2026-09-30 23:59Z', '2026-10-01 00:01Z', 1, 1)"
    )
    found = check_gaps(connection, files)
    assert found.months == (date(2026, 7, 1),)
    assert (found.days, found.days_without, found.passed) == (2, 1, False)
