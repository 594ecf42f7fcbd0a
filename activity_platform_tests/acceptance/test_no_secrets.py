"""After a day's work, good and bad, no secret and no person is in what Dagster, logs and metrics keep.

Its short form, within one process, is in `defs/test_audience.py`.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql

from activity_platform.activity.maintenance import maintain_log
from activity_platform.gateways import queue
from activity_platform.gateways.queue import LAST_ACTIVITY, QUEUES, Queues
from activity_platform.ingest.auth import development_token
from activity_platform.local.programs import Programs
from activity_platform.local.services import DAGSTER_DATABASE, Stack
from activity_platform.settings import Settings
from activity_platform_tests.acceptance.conftest import until
from activity_platform_tests.audience_world import World, world_of
from activity_platform_tests.simulated_line import SimulatedLine

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

WAIT_SECONDS = 400  # a machine that is busy with tests; alone it is some eighty
WORKBOOK = b"PK\x03\x04 xl/workbook.xml"

#: Whatever is written for this person or this object is refused, with an error that quotes the whole row.
REFUSE = """
ALTER TABLE line_user ADD CHECK (line_user_id <> '{unlucky}') NOT VALID;
ALTER TABLE line_user ADD CHECK (last_activity_type <> 'refused') NOT VALID;
ALTER TABLE interaction_edges ADD CHECK (target_id <> 'refused') NOT VALID;
"""
FAILURES = "SELECT DISTINCT pipeline_name FROM runs WHERE status = 'FAILURE'"
FAILED_TICKS = "SELECT count(*) FROM job_ticks WHERE status = 'FAILURE'"
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"


def line_id() -> str:
    return f"U{secrets.token_hex(16)}"


@dataclass(frozen=True)
class Secrets:
    """Words that are nowhere else, by what they are."""

    channel_token: str = field(default_factory=lambda: f"channel-{secrets.token_hex()}")
    aws_secret: str = field(default_factory=lambda: f"aws-{secrets.token_hex()}")
    member: str = field(default_factory=line_id)
    unanswered: str = field(default_factory=line_id)
    unlucky: str = field(default_factory=line_id)
    active: str = field(default_factory=line_id)
    display_name: str = "Marigold Unmistakable"
    status_message: str = "gone fishing off Unmistakable Bay"
    sub: str = field(default_factory=lambda: f"sub-{secrets.token_hex()}")
    context: str = "context-of-one-unmistakable-event"
    producers_id: str = "producers-own-message-id"

    @property
    def personal(self) -> dict[str, str]:
        """Those that the platform's own database holds."""
        names = ("member", "active", "display_name", "status_message", "sub", "context", "channel_token")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Site:
    """The platform at its day's work."""

    stack: Stack
    programs: Programs
    settings: Settings
    world: World
    words: Secrets

    @property
    def all_secrets(self) -> dict[str, str]:
        """Every word that must not be found."""
        memory = json.loads((self.stack.directory / "stack.json").read_text())
        return vars(self.words) | {
            "jwt_secret": self.settings.jwt_secret,
            "database_password": memory["postgres_password"],
            "redis_password": memory["valkey_password"],
        }

    def dagster_rows(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.stack.database_url(DAGSTER_DATABASE)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything has run: events, activities, audiences, and a failure of each kind."""
    words = Secrets()
    with Stack(
        tmp_path_factory.mktemp("secrets"), overrides={"AUDIENCE_RETRY_SECONDS": "1"}, durable=False
    ) as stack:
        environment = stack.environment | {
            "AWS_SECRET_ACCESS_KEY": words.aws_secret,
            "ROLLUP_LAG_SECONDS": "1",
        }
        maintain_log(Settings.load(environment))
        with Programs(stack.directory, environment) as programs, pytest.MonkeyPatch.context() as patch:
            for name, value in programs.environment.items():
                patch.setenv(name, value)
            settings = Settings.load(programs.environment)
            with (
                closing(psycopg.connect(settings.database_url, autocommit=True)) as connection,
                world_of(settings, connection) as world,
            ):
                site = Site(stack, programs, settings, world, words)
                work(site)
                yield site


def work(site: Site) -> None:
    """A day's work. Ends when every queue is empty and whatever had to fail has failed."""
    prepare(site)
    import_audiences(site)
    send_activities(site)
    post_events(site, "e1")
    until(lambda: edges(site) > 0, WAIT_SECONDS)
    post_events(site, "refused")
    with closing(queue.connect(site.settings.redis_url)) as client:
        until(lambda: not any(Queues(client).depth(name) for name in QUEUES), WAIT_SECONDS)
    expected = {"create_audience_job", "update_audience_job", "interaction_edges_job"}
    until(lambda: expected <= {str(job) for (job,) in site.dagster_rows(FAILURES)}, WAIT_SECONDS)
    site.stack.valkey.stop()
    until(lambda: site.dagster_rows(FAILED_TICKS) != [(0,)], WAIT_SECONDS)
    site.stack.valkey.start()


def prepare(site: Site) -> None:
    connection, words = site.world.connection, site.words
    connection.execute("UPDATE line_oa SET channel_access_token = %s", [words.channel_token])
    connection.execute(REFUSE.format(unlucky=words.unlucky))
    line = SimulatedLine(site.settings.line_api_base_url)
    line.answer({"status": 500}, ids=[words.unanswered])
    profile = {"displayName": words.display_name, "statusMessage": words.status_message}
    line.answer({"profile": profile})
    site.world.add_users([words.active])


def import_audiences(site: Site) -> None:
    """One that ends well; a workbook; an id without an answer; a row that the database refuses; no file."""
    world, words = site.world, site.words
    world.create(world.add_audience(), [words.member], message_id=words.producers_id)
    world.create(world.add_audience(), WORKBOOK)
    world.create(world.add_audience(), [words.member, words.unanswered])
    world.update(world.add_audience(), [words.member, words.unlucky])
    world.send("update_audience", world.add_audience(), filePath=f"private/{words.member}.csv")


def send_activities(site: Site) -> None:
    """One that is taken, one with a person's id in the wrong field, one that the database refuses."""
    words = site.words
    with closing(queue.connect(site.settings.redis_url)) as client:
        for kind, status in (("message", "active"), ("message", words.active), ("refused", "active")):
            payload = {
                "lineUserId": words.active,
                "lineOaId": site.world.line_oa_id,
                "organizationId": site.world.organization_id,
                "activityType": kind,
                "activityStatus": status,
            }
            Queues(client).publish(LAST_ACTIVITY, json.dumps(payload))
            if kind == "message":
                until(lambda: not Queues(client).depth(LAST_ACTIVITY), WAIT_SECONDS)


def post_events(site: Site, object_id: str) -> None:
    """Sound ones, and one that is refused."""
    token = development_token(site.settings, site.words.sub)
    headers = {"Authorization": f"Bearer {token}"}
    event = {
        "verb": "save",
        "object_type": "event",
        "object_id": object_id,
        "context": {"said": site.words.context},
    }
    for events, status in (([event], 202), ([event | {"verb": site.words.context}], 400)):
        url = f"{site.programs.api_url}/api/v1/activity/events"
        answer = httpx.post(url, json={"events": events}, headers=headers)
        assert answer.status_code == status


def edges(site: Site) -> int:
    return site.world.count("interaction_edges")


def tables(url: str) -> Iterator[tuple[str, bytes]]:
    """Every value of every table of a database, with its place."""
    with psycopg.connect(url) as connection:
        for (table,) in connection.execute(TABLES).fetchall():
            for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))):
                yield f"table {table}", b"\n".join(map(as_bytes, row))


def as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return zlib.decompress(value)  # how Dagster keeps snapshots
    except zlib.error:
        return value


def files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below it."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield f"file {path.relative_to(directory.parent)}", path.read_bytes()


def found(words: dict[str, str], traces: Iterator[tuple[str, bytes]]) -> set[tuple[str, str]]:
    """Which word is where."""
    return {(name, place) for place, text in traces for name, word in words.items() if word.encode() in text}


def test_nothing_of_it_is_in_dagsters_database(site: Site) -> None:
    """Run config, tags, events, metadata, errors and ticks."""
    url = site.stack.database_url(DAGSTER_DATABASE)
    kept = b"".join(text for _, text in tables(url))
    for shown in (b"internal_error", b"unsupported_format", b"unresolved_profiles", b"file_not_found"):
        assert shown in kept
    assert found(site.all_secrets, tables(url)) == set()


def test_nothing_of_it_is_in_compute_logs_and_files_of_runs(site: Site) -> None:
    home = site.stack.directory / "dagster"
    assert sum(1 for _ in files(home)) > 10
    assert found(site.all_secrets, files(home)) == set()


def test_nothing_of_it_is_in_what_the_processes_say(site: Site) -> None:
    """PostgreSQL's own log is its operator's: a statement that fails is quoted there, with its row."""
    logs = [
        (place, text) for place, text in files(site.stack.directory / "run") if "postgres.log" not in place
    ]
    assert {"file run/code.log", "file run/ingest.log", "file run/daemon.log"} <= {place for place, _ in logs}
    assert found(site.all_secrets, iter(logs)) == set()


def test_nothing_of_it_is_in_the_metrics(site: Site) -> None:
    metrics = httpx.get(f"{site.programs.api_url}/metrics").content
    assert b"202" in metrics
    assert found(site.all_secrets, iter([("metrics", metrics)])) == set()


def test_nothing_of_it_is_in_reasons_that_people_are_shown(site: Site) -> None:
    """The errors of attempts, of imports and of dead letters; a letter's payload is the producer's own."""
    errors = site.world.connection.execute("SELECT last_error FROM message_attempt").fetchall()
    with closing(queue.connect(site.settings.redis_url)) as client:
        letters = [letter.error for name in QUEUES for letter in Queues(client).dead(name)]
    assert len(letters) >= 5
    texts = [str(error).encode() for (error,) in errors] + [error.encode() for error in letters]
    assert found(site.all_secrets, ((str(number), text) for number, text in enumerate(texts))) == set()


def test_all_of_it_went_through_the_platform(site: Site) -> None:
    """What the others look for is there to be found, in the one place where it belongs."""
    places = found(site.words.personal, tables(site.settings.database_url))
    assert {name for name, _ in places} == site.words.personal.keys()
