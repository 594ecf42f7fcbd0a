"""With ARCHIVE_BEFORE_DROP a month is dropped only once all its rows lie in the object storage."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import psycopg
import pytest

from activity_platform.activity.archive import path_of, read_archive
from activity_platform.activity.maintenance import maintain_log
from activity_platform.activity.partition_plan import Partition
from activity_platform.failures import UsageError
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.settings import Settings

SEPTEMBER = Partition(
    "activity_events_y2026m09", datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
)
IN_SEPTEMBER = datetime(2026, 9, 15, tzinfo=UTC)
LATER = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
def settings(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return Settings.load(environment | {"ARCHIVE_BEFORE_DROP": "1"})


def _archived(settings: Settings) -> list[dict[str, object]]:
    store = ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
    return read_archive(io.BytesIO(store.get(path_of(SEPTEMBER), most_bytes=10**7)))


def _stands(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT to_regclass('activity_events_y2026m09') IS NOT NULL").fetchone() == (
        True,
    )


@pytest.fixture
def september(settings: Settings, connection: psycopg.Connection) -> None:
    """A folded September with an event of every kind of content."""
    maintain_log(settings, now=IN_SEPTEMBER)
    connection.execute(
        "INSERT INTO activity_events"
        " (user_id, verb, object_type, object_id, surface, context, created_at) VALUES"
        " ('ann', 'save', 'event', 'ก😀', 'feed', %s, '2026-09-30 23:59:59.999999+00'),"
        " ('bob', 'view', 'query', 'q', NULL, NULL, '2026-09-01 00:00:00+00')",
        ['{"rank": 1, "deep": [null, 1.5]}'],
    )
    connection.execute("UPDATE activity_rollup_state SET watermark = '2026-11-01 00:00:00+00'")


@pytest.mark.usefixtures("september")
def test_a_month_is_archived_whole_and_then_dropped(
    settings: Settings, connection: psycopg.Connection
) -> None:
    result = maintain_log(settings, now=LATER)

    assert result.dropped == 1
    assert not _stands(connection)
    rows = {str(row["user_id"]): row for row in _archived(settings)}
    assert rows["ann"]["object_id"] == "ก😀"
    assert rows["ann"]["context"] == {"rank": 1, "deep": [None, 1.5]}
    assert rows["ann"]["created_at"] == datetime(2026, 9, 30, 23, 59, 59, 999999, tzinfo=UTC)
    assert (rows["bob"]["surface"], rows["bob"]["context"]) == (None, None)
    assert len(rows) == 2


@pytest.mark.usefixtures("september")
def test_a_month_stays_while_the_storage_is_away(settings: Settings, connection: psycopg.Connection) -> None:
    away = Settings(**{**vars(settings), "s3_bucket": "no-such-bucket"})
    result = maintain_log(away, now=LATER)

    assert (result.dropped, result.failed) == (0, 1)
    assert _stands(connection)


@pytest.mark.usefixtures("september")
def test_the_plan_archives_nothing(settings: Settings, connection: psycopg.Connection) -> None:
    planned = {step.partition: step.action for step in maintain_log(settings, now=LATER, dry_run=True).steps}
    assert planned["activity_events_y2026m09"] == "drop"
    assert _stands(connection)


def test_archiving_takes_a_bucket(environment: dict[str, str]) -> None:
    chosen = Settings.load(environment | {"ARCHIVE_BEFORE_DROP": "1", "S3_BUCKET": ""})
    with pytest.raises(UsageError, match="S3_BUCKET"):
        maintain_log(chosen)
