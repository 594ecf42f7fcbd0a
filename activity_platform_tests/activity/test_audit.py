"""The audit: edges as their events make them, beside the live ones."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import LiteralString

import psycopg
import pytest

from activity_platform import erasure_requests
from activity_platform.activity import erasure
from activity_platform.activity.audit import Difference, Scope, audit_edges, audit_sample
from activity_platform.activity.corpus import Corpus
from activity_platform.activity.corpus_export import export_days
from activity_platform.activity.partition_plan import month_of
from activity_platform.activity.partitions import maintain
from activity_platform.activity.retention import forget
from activity_platform.activity.rollup import fold
from activity_platform.activity.vocabulary import Verb
from activity_platform.erasure_requests import Kind
from activity_platform.settings import Settings
from activity_platform_tests.activity.corpus_files import bucket_of_its_own
from activity_platform_tests.activity.log_rows import add_event, fill_september, set_watermark

NOW = datetime.now(UTC)
OLD_MONTH = month_of(NOW - timedelta(days=45))
MONTH_AGO, YESTERDAY = OLD_MONTH + timedelta(days=14), NOW - timedelta(days=1)


@pytest.fixture
def files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return Corpus(bucket_of_its_own(environment, monkeypatch))


def _audit(
    database_url: str, files: Corpus | None = None, days: int | None = None
) -> tuple[Scope, list[Difference]]:
    with audit_edges(database_url, files, days=days) as found:
        return found.scope, list(found.differences)


def _told(differences: Sequence[Difference]) -> list[tuple[str, str, str | None, str | None]]:
    return [(one.kind, one.target_id, one.expected, one.found) for one in differences]


@pytest.fixture
def history(connection: psycopg.Connection, database_url: str) -> None:
    """Two folds: one event of each verb a month and a half ago, and twice yesterday on two targets."""
    maintain(database_url, now=MONTH_AGO, retention_days=0, ahead=3)
    for verb in Verb:
        add_event(connection, "old", verb=verb, at=MONTH_AGO)
        add_event(connection, "old", verb=verb, at=YESTERDAY)
        add_event(connection, "new", verb=verb, at=YESTERDAY, times=2)
    set_watermark(connection, "now() - interval '60 days'")
    fold(database_url, lag_seconds=30 * 86_400)
    fold(database_url, lag_seconds=0)


def _drop_old_month(database_url: str, connection: psycopg.Connection) -> None:
    # Retention of a day, seen from the end of the old month, as maintenance would do it.
    later = OLD_MONTH + timedelta(days=34)
    assert maintain(database_url, now=later, retention_days=1, ahead=3).dropped == 1
    forget(connection, now=NOW, most=10_000)


PLANTED: list[tuple[LiteralString, str]] = [
    ("DELETE FROM interaction_edges WHERE {edge}", "missing"),
    (
        "INSERT INTO interaction_edges"
        " SELECT actor_id, edge_type, target_type, 'other', 1, 1, first_at, last_at"
        " FROM interaction_edges WHERE {edge}",
        "surplus",
    ),
    ("UPDATE interaction_edges SET weight = weight + 0.5 WHERE {edge}", "weight"),
    ("UPDATE interaction_edges SET weight = weight - 0.5 WHERE {edge}", "weight"),
    ("UPDATE interaction_edges SET event_count = event_count + 1 WHERE {edge}", "event_count"),
    ("UPDATE interaction_edges SET event_count = event_count - 1 WHERE {edge}", "event_count"),
    ("UPDATE interaction_edges SET first_at = first_at - interval '1 us' WHERE {edge}", "first_at"),
    ("UPDATE interaction_edges SET first_at = first_at + interval '1 us' WHERE {edge}", "first_at"),
    ("UPDATE interaction_edges SET last_at = last_at - interval '1 us' WHERE {edge}", "last_at"),
    ("UPDATE interaction_edges SET last_at = last_at + interval '1 us' WHERE {edge}", "last_at"),
]
EDGE = "edge_type = 'saved' AND target_id = 'new'"


@pytest.mark.usefixtures("history")
def test_edges_that_are_as_their_events_make_them_do_not_differ(database_url: str) -> None:
    for days in (None, 7, 400):
        scope, differences = _audit(database_url, days=days)
        assert differences == []
        assert (scope.edges, scope.partly, scope.late, scope.unknown) == (12, 6 if days == 7 else 0, 0, 0)
        assert scope.events == (24 if days == 7 else 32)


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("days", [None, 7])
def test_each_kind_of_difference_is_found(
    database_url: str, connection: psycopg.Connection, days: int | None
) -> None:
    for change, kind in PLANTED:
        with psycopg.connect(database_url) as planting:
            planting.execute("CREATE TABLE kept AS SELECT * FROM interaction_edges")
            planting.execute(change.replace("{edge}", EDGE))
        assert [one.kind for one in _audit(database_url, days=days)[1]] == [kind], change
        with psycopg.connect(database_url) as planting:
            planting.execute("DELETE FROM interaction_edges")
            planting.execute("INSERT INTO interaction_edges SELECT * FROM kept")
            planting.execute("DROP TABLE kept")
    assert _audit(database_url, days=days)[1] == []


@pytest.mark.usefixtures("history")
def test_a_difference_says_what_is_expected_and_what_is_there(
    database_url: str, connection: psycopg.Connection
) -> None:
    connection.execute("DELETE FROM interaction_edges WHERE edge_type = 'saved' AND target_id = 'new'")
    connection.execute("UPDATE interaction_edges SET weight = 4 WHERE edge_type = 'saved'")
    assert _told(_audit(database_url)[1]) == [("missing", "new", "2", None), ("weight", "old", "6", "4")]


@pytest.mark.usefixtures("history")
def test_an_older_edge_holds_at_least_what_the_window_knows(
    database_url: str, connection: psycopg.Connection
) -> None:
    edge = "edge_type = 'saved' AND target_id = 'old'"
    connection.execute(f"UPDATE interaction_edges SET weight = weight + 3 WHERE {edge}")
    assert _audit(database_url, days=7)[1] == []
    connection.execute(
        f"UPDATE interaction_edges SET weight = 2.5, event_count = 0, last_at = now() WHERE {edge}"
    )
    assert [one.kind for one in _audit(database_url, days=7)[1]] == ["weight", "event_count", "last_at"]


@pytest.mark.usefixtures("history")
def test_days_that_are_gone_from_the_log_come_from_the_corpus(
    database_url: str, connection: psycopg.Connection, files: Corpus
) -> None:
    export_days(database_url, files)
    _drop_old_month(database_url, connection)

    scope, differences = _audit(database_url, files)
    assert differences == []
    assert (scope.partly, scope.events, scope.unknown) == (0, 32, 0)

    connection.execute("UPDATE interaction_edges SET event_count = 3 WHERE target_id = 'old' AND weight = 6")
    assert {one.kind for one in _audit(database_url, files)[1]} == {"event_count"}


def test_ids_of_any_characters_are_compared_as_they_are(
    database_url: str, connection: psycopg.Connection, files: Corpus
) -> None:
    odd = ["NULL", "\\N", "\\.", "", '"', "a,b", "a\n\r\tb", "ก😀", " x ", "'"]
    for name in odd:
        add_event(connection, name, user=name, at=MONTH_AGO)
    fold(database_url, lag_seconds=0)
    export_days(database_url, files)
    connection.execute("DELETE FROM activity_events")

    scope, differences = _audit(database_url, files)
    assert (scope.events, scope.edges, differences) == (10, 10, [])


@pytest.mark.usefixtures("history")
def test_history_that_is_nowhere_is_told_and_not_taken_for_a_difference(
    database_url: str, connection: psycopg.Connection
) -> None:
    _drop_old_month(database_url, connection)

    scope, differences = _audit(database_url)

    assert differences == []
    assert (scope.unknown, scope.partly, scope.edges) == (8, 6, 12)
    assert MONTH_AGO <= scope.since < YESTERDAY
    connection.execute("UPDATE interaction_edges SET weight = weight + 1 WHERE target_id = 'new'")
    assert {one.kind for one in _audit(database_url)[1]} == {"weight"}


@pytest.mark.usefixtures("history")
def test_late_events_are_told_and_not_taken_for_a_difference(
    database_url: str, connection: psycopg.Connection, files: Corpus
) -> None:
    for target in ("old", "late"):
        add_event(connection, target, at=YESTERDAY)
        add_event(connection, target, at=MONTH_AGO - timedelta(minutes=1))
    assert (_audit(database_url)[0].late, _audit(database_url)[1]) == (4, [])

    export_days(database_url, files)
    _drop_old_month(database_url, connection)
    add_event(connection, "later", at=MONTH_AGO + timedelta(minutes=1))
    add_event(connection, "later", at=MONTH_AGO - timedelta(days=1))
    scope, differences = _audit(database_url, files)
    assert differences == []
    assert (scope.unknown, scope.partly) == (0, 0)
    assert scope.late >= 4


def test_erased_users_are_no_difference_at_any_time(
    database_url: str, connection: psycopg.Connection, environment: dict[str, str], files: Corpus
) -> None:
    maintain(database_url, now=MONTH_AGO, retention_days=0, ahead=3)
    for at in (MONTH_AGO, YESTERDAY):
        add_event(connection, "t", user="gone", at=at)
        add_event(connection, "t", user="stays", at=at)
        connection.execute(
            "INSERT INTO activity_events (user_id, verb, object_type, object_id, created_at)"
            " VALUES ('stays', 'tap', 'user', 'gone', %s)",
            [at],
        )
    fold(database_url, lag_seconds=0)
    export_days(database_url, files)
    _drop_old_month(database_url, connection)
    assert _audit(database_url, files)[1] == []

    request = erasure_requests.request(connection, Kind.USER, subject="gone")
    for older_files in (False, True):
        erasure.erase_user(Settings.load(environment), request, older_files=older_files)
        scope, differences = _audit(database_url, files)
        assert (differences, scope.unknown, scope.partly, scope.late) == ([], 0, 0, 0)
    assert scope.events == 2


@pytest.mark.usefixtures("history")
def test_it_reads_one_moment_while_events_are_folded(database_url: str) -> None:
    ended = threading.Event()

    def write_and_fold() -> None:
        with psycopg.connect(database_url, autocommit=True) as writer:
            while not ended.is_set():
                add_event(writer, f"t{random.randrange(5)}", verb=random.choice(list(Verb)), times=20)
                fold(database_url, lag_seconds=0)

    thread = threading.Thread(target=write_and_fold)
    thread.start()
    try:
        for _ in range(5):
            scope, differences = _audit(database_url)
            assert differences == []
            assert scope.unknown == 0
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("history")
def test_a_sample_of_actors_tells_of_their_edges(database_url: str, connection: psycopg.Connection) -> None:
    with audit_sample(database_url, days=7, most=10) as found:
        assert list(found.differences) == []
        assert found.scope.edges == 12
    connection.execute("UPDATE interaction_edges SET weight = 100 WHERE target_id = 'new'")
    with audit_sample(database_url, days=7, most=10) as found:
        assert {one.kind for one in found.differences} == {"weight"}


def test_an_empty_platform_has_nothing_to_tell(database_url: str, files: Corpus) -> None:
    scope, differences = _audit(database_url, files)
    assert (scope.edges, scope.events, differences) == (0, 0, [])
    assert scope.since.year == 1


def _plant(database_url: str) -> dict[tuple[str, ...], str]:
    """Plants each difference on an edge of its own. Returns their keys with the kinds."""
    told: dict[tuple[str, ...], str] = {}
    with psycopg.connect(database_url) as planting:
        chosen = planting.execute(
            "SELECT actor_id, edge_type, target_type, target_id FROM interaction_edges"
            " WHERE event_count > 1 ORDER BY md5(actor_id || target_id) LIMIT 10"
        ).fetchall()
        for (actor, edge_type, target_type, target), (change, kind) in zip(chosen, PLANTED, strict=True):
            edge = f"actor_id = '{actor}' AND edge_type = '{edge_type}' AND target_id = '{target}'"
            planting.execute(change.replace("{edge}", edge).encode())
            told[actor, edge_type, target_type, "other" if kind == "surplus" else target] = kind
    return told


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_ten_planted_differences_among_two_million_events_are_found_and_no_others(
    files: Corpus, connection: psycopg.Connection, database_url: str
) -> None:
    fill_september(connection, 2_000_000)
    fold(database_url, lag_seconds=0, slice_events=100_000)
    export_days(database_url, files)
    connection.execute("CREATE TABLE kept AS SELECT * FROM interaction_edges")
    for source in ("log", "corpus"):
        if source == "corpus":
            connection.execute("TRUNCATE interaction_edges")
            connection.execute("INSERT INTO interaction_edges SELECT * FROM kept")
            connection.execute("DROP TABLE activity_events_y2026m09")
        scope, differences = _audit(database_url, files)
        assert differences == []
        assert (scope.late, scope.unknown, scope.partly) == (0, 0, 0)
        planted = _plant(database_url)
        differences = _audit(database_url, files)[1]
        found = {
            (one.actor_id, one.edge_type, one.target_type, one.target_id): one.kind for one in differences
        }
        assert (found, len(differences)) == (planted, 10)
