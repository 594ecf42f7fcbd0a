"""With ARCHIVE_BEFORE_DROP a month is dropped only once each of its days lies in the training corpus."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import psycopg
import pytest

from activity_platform.activity.corpus_export import export_days
from activity_platform.activity.corpus_location import corpus_of
from activity_platform.activity.maintenance import maintain_log
from activity_platform.activity.partitions import MaintenanceResult
from activity_platform.failures import UsageError
from activity_platform.settings import Settings
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, set_watermark

SEPTEMBER = "activity_events_y2026m09"
IN_SEPTEMBER = datetime(2026, 9, 15, tzinfo=UTC)
LATER = datetime(2026, 11, 15, tzinfo=UTC)
FIRST, LAST = date(2026, 9, 1), date(2026, 9, 30)


@pytest.fixture
def settings(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    bucket_of_its_own(environment, monkeypatch)
    return Settings.load(environment)


def _stands(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [SEPTEMBER]).fetchone() == (True,)


def _said(result: MaintenanceResult) -> tuple[str, str]:
    (step,) = (step for step in result.steps if step.partition == SEPTEMBER)
    return str(step.action), step.reason.partition("past retention")[2]


@pytest.fixture
def september(settings: Settings, connection: psycopg.Connection) -> None:
    """A folded September with events at its first and at its last microsecond."""
    maintain_log(settings, now=IN_SEPTEMBER)
    add_event(connection, at="2026-09-01T00:00:00Z")
    add_event(connection, at="2026-09-30T23:59:59.999999Z")
    set_watermark(connection, "'2026-11-01Z'")


@pytest.mark.usefixtures("september")
def test_a_month_is_archived_whole_and_then_dropped(
    settings: Settings, connection: psycopg.Connection
) -> None:
    planned = maintain_log(settings, now=LATER, dry_run=True)
    assert _said(planned) == (
        "drop",
        " and folded, to be archived first: 2 of its days are not in the training corpus",
    )
    assert corpus_of(settings).days() == []

    assert maintain_log(settings, now=LATER).dropped == 1

    assert not _stands(connection)
    files = corpus_of(settings)
    assert files.days() == [FIRST, LAST]
    manifests = [files.manifest(day) for day in files.days()]
    assert [manifest.rows for manifest in manifests if manifest] == [1, 1]


@pytest.mark.usefixtures("september")
def test_an_archived_month_is_dropped_without_another_export(
    settings: Settings, connection: psycopg.Connection, database_url: str
) -> None:
    files = corpus_of(settings)
    export_days(database_url, files)
    before = [files.storage.find_metadata(f"training/activity_events/dt={FIRST}/events.parquet")]
    assert _said(maintain_log(settings, now=LATER, dry_run=True)) == ("drop", ", folded and archived")
    assert maintain_log(settings, now=LATER).dropped == 1
    assert [files.storage.find_metadata(f"training/activity_events/dt={FIRST}/events.parquet")] == before


@pytest.mark.usefixtures("september")
def test_a_day_that_changed_since_its_export_is_not_taken_for_archived(
    settings: Settings, connection: psycopg.Connection, database_url: str
) -> None:
    files = corpus_of(settings)
    export_days(database_url, files)
    add_event(connection, user="late", at="2026-09-01T10:00:00Z")
    assert "1 of its days" in _said(maintain_log(settings, now=LATER, dry_run=True))[1]

    assert maintain_log(settings, now=LATER).dropped == 1

    manifest = files.manifest(FIRST)
    assert manifest is not None
    assert manifest.rows == 2


@pytest.mark.usefixtures("september")
def test_the_plan_says_that_a_month_is_neither_folded_nor_archived(
    settings: Settings, connection: psycopg.Connection
) -> None:
    set_watermark(connection, "'2026-09-20Z'")
    assert _said(maintain_log(settings, now=LATER)) == (
        "keep",
        ", not folded: the watermark is 2026-09-20; not archived:"
        " 2 of its days are not in the training corpus",
    )
    assert _stands(connection)


@pytest.mark.usefixtures("september")
def test_a_month_stays_while_the_storage_is_away_and_the_others_are_made(
    settings: Settings, connection: psycopg.Connection
) -> None:
    away = replace(settings, s3_bucket="no-such-bucket")

    result = maintain_log(away, now=LATER)

    assert (result.dropped, result.failed) == (0, 1)
    assert result.created > 0
    assert _stands(connection)


@pytest.mark.usefixtures("september")
def test_events_that_no_day_can_hold_keep_their_month(
    settings: Settings, connection: psycopg.Connection
) -> None:
    connection.execute(
        "CREATE TABLE ancient PARTITION OF activity_events FOR VALUES FROM (MINVALUE) TO ('1970-01-01Z')"
    )
    add_event(connection, at="-infinity")
    result = maintain_log(settings, now=LATER)
    (step,) = (step for step in result.steps if step.partition == "ancient")
    assert step.failed
    assert "before the year 2" in step.reason


@pytest.mark.parametrize(
    ("bucket", "choice", "must"),
    [("b", "", True), ("", "", False), ("b", "0", False), ("b", "1", True), ("", "1", True)],
)
def test_months_are_archived_where_there_is_a_bucket_unless_told_otherwise(
    bucket: str, choice: str, must: bool
) -> None:
    assert Settings.load({"S3_BUCKET": bucket, "ARCHIVE_BEFORE_DROP": choice}).must_archive is must


def test_archiving_takes_a_bucket(environment: dict[str, str]) -> None:
    chosen = Settings.load(environment | {"ARCHIVE_BEFORE_DROP": "1", "S3_BUCKET": ""})
    with pytest.raises(UsageError, match="S3_BUCKET"):
        maintain_log(chosen)
