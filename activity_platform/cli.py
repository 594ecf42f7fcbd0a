"""The command line, `activity-platform …`. Each command unpacks, calls one function and prints its result.

Imports stand inside the commands: a command loads what it needs and no more.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from activity_platform import __version__
from activity_platform.console import FAILED, Commands, load_settings, print_json, print_rows, say
from activity_platform.failures import PermanentFailure, UsageError
from activity_platform.settings import Need

if TYPE_CHECKING:
    from activity_platform.gateways.queue import Queues

json_option = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of a table.")
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".local/stack"),
    show_default=True,
    help="Where the stack keeps its data; it survives a restart.",
)


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Interaction events, affinity edges, LINE audiences and last activity."""


@main.command()
@data_dir_option
@click.option("--env-file", type=click.Path(path_type=Path), help="Gets KEY=value lines once all are ready.")
def services(data_dir: Path, env_file: Path | None) -> None:
    """Run PostgreSQL, Valkey, S3 and a LINE simulator until Ctrl-C."""
    from activity_platform.local.run import run_services

    run_services(data_dir, env_file)


@main.command()
@data_dir_option
def dev(data_dir: Path) -> None:
    """Run services, ingest, Dagster's webserver and daemon in this terminal."""
    from activity_platform.local.run import run_dev

    run_dev(data_dir)


@main.command()
@data_dir_option
@click.option("--exit", "then_exit", is_flag=True, help="Stop once every path delivered; else go on running.")
def demo(data_dir: Path, then_exit: bool) -> None:
    """Run `dev` and send real traffic through every path."""
    from activity_platform.local.run import run_demo

    run_demo(data_dir, then_exit=then_exit)


@main.command()
@click.option("--check", is_flag=True, help="Change nothing; list what existing tables lack.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
    """Bring the database to this release, with partitions for the hot months."""
    from activity_platform import migrations
    from activity_platform.activity import partitions

    settings = load_settings(Need.DATABASE, any_schema=True)
    if check:
        _list_lacks(settings.database_url, as_json=as_json)
        return
    revision = migrations.upgrade(settings.database_url)
    result = partitions.maintain(
        settings.database_url,
        now=None,
        retention_days=settings.retention_days,
        ahead=settings.partitions_ahead,
        archive_before_drop=settings.archive_before_drop,
    )
    print_json({"revision": revision, "partitions_created": result.created})


def _list_lacks(database_url: str, *, as_json: bool) -> None:
    from activity_platform import migrations
    from activity_platform.gateways import postgres

    with postgres.connect(database_url, application_name="activity-platform migrate") as connection:
        mismatch = migrations.mismatch(migrations.current_revision(connection))
        lacks = migrations.lacks(connection)
    print_rows(lacks, ("table", "part", "wanted", "found"), as_json=as_json)
    if mismatch:
        say(str(mismatch))
    say(f"existing tables lack {len(lacks)} things" if lacks else "existing tables lack nothing")
    if lacks:
        sys.exit(FAILED)


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look at everything the platform stands on; say what is wrong and how to cure it."""
    from activity_platform.doctor import Status, examine

    findings = list(examine(load_settings(Need.DATABASE, any_schema=True)))
    print_rows(findings, ("status", "check", "what", "cure"), as_json=as_json)
    if any(finding.status is Status.RED for finding in findings):
        sys.exit(FAILED)


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
def ingest(host: str, port: int, workers: int) -> None:
    """Serve the HTTP API."""
    from activity_platform import migrations
    from activity_platform.gateways.postgres import DatabaseAway
    from activity_platform.ingest.server import serve

    settings = load_settings(Need.DATABASE, Need.TOKENS, any_schema=True)
    with contextlib.suppress(DatabaseAway):  # it may come later; /readyz tells until then
        migrations.ensure_current(settings.database_url)
    serve(settings, host=host, port=port, workers=workers)


@main.command()
@click.argument("subject", metavar="SUB")
@click.option("--scope", default="", help="Space-separated, such as edges:read.")
@click.option("--ttl", type=click.IntRange(1), default=3600, show_default=True, help="Seconds.")
def token(subject: str, scope: str, ttl: int) -> None:
    """Print a development token for a user (HS256 setups only)."""
    from activity_platform.ingest.auth import development_token

    click.echo(development_token(load_settings(Need.TOKENS), subject, scope=scope, ttl_seconds=ttl))


@main.command()
def rollup() -> None:
    """Fold events into edges until caught up."""
    from activity_platform.activity.rollup import fold

    settings = load_settings(Need.DATABASE)
    result = fold(settings.database_url, lag_seconds=settings.rollup_lag_seconds)
    if result.busy:
        say("another fold is under way; nothing done")
    print_json(result)


@main.command()
@click.argument("actor", metavar="ACTOR")
@click.option("--edge-type", help="Only edges of this type.")
@click.option("--limit", type=int, default=50, show_default=True)
@json_option
def edges(actor: str, edge_type: str | None, limit: int, as_json: bool) -> None:
    """Show a user's edges, strongest first."""
    from activity_platform.activity.edges import list_edges
    from activity_platform.gateways import postgres

    settings = load_settings(Need.DATABASE)
    with postgres.connect(settings.database_url, application_name="activity-platform edges") as connection:
        found = list_edges(
            connection,
            actor,
            now=None,
            half_life_days=settings.edge_half_life_days,
            edge_type=edge_type,
            limit=limit,
        )
    columns = (
        *("edge_type", "target_type", "target_id", "strength"),
        *("weight", "event_count", "first_at", "last_at"),
    )
    print_rows(found, columns, as_json=as_json, aside=["first_at"])
    if not found:
        say(f"no edges of {actor}" + (f" of type {edge_type}" if edge_type else ""))


@main.group(name="partitions")
def partitions_group() -> None:
    """Provision coming months of the activity log and drop old ones."""


def _timestamp(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"--now {text!r} is not an ISO 8601 time with an offset, such as 2026-11-30T12:00:00Z"
        )
    return moment.astimezone(UTC)


now_option = click.option(
    "--now", "now_text", metavar="TS", help="ISO 8601 with an offset; default: the clock."
)


@partitions_group.command()
@now_option
@json_option
def plan(now_text: str | None, as_json: bool) -> None:
    """Say what maintenance would do."""
    _maintain(now_text, as_json, dry_run=True)


@partitions_group.command()
@now_option
@json_option
def apply(now_text: str | None, as_json: bool) -> None:
    """Do it."""
    _maintain(now_text, as_json, dry_run=False)


def _maintain(now_text: str | None, as_json: bool, *, dry_run: bool) -> None:
    from activity_platform.activity import partitions

    now = _timestamp(now_text)
    settings = load_settings(Need.DATABASE)
    result = partitions.maintain(
        settings.database_url,
        now=now,
        retention_days=settings.retention_days,
        ahead=settings.partitions_ahead,
        archive_before_drop=settings.archive_before_drop,
        dry_run=dry_run,
    )
    print_rows(result.steps, ("action", "partition", "reason"), as_json=as_json)
    if result.failed:
        say(f"{result.failed} steps failed")
        sys.exit(FAILED)


@main.group()
def queue() -> None:
    """Look into the queues and their dead letters, put messages in and back."""


def _queues() -> Queues:
    from activity_platform.gateways.queue import Queues, connect

    return Queues(connect(load_settings(Need.REDIS).redis_url))


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("payload", metavar="JSON")
def enqueue(name: str, payload: str) -> None:
    """Put a message on a queue; prints its entry id."""
    print_json({"queue": name, "entry_id": _queues().enqueue(name, payload)})


@queue.command()
@json_option
def status(as_json: bool) -> None:
    """Show depth, dead letters and the age of the head, a line a queue."""
    queues = _queues()
    print_rows(queues.status(), ("queue", "depth", "dead", "oldest_seconds"), as_json=as_json)
    policy = queues.maxmemory_policy()
    if policy != "noeviction":
        say(f"maxmemory-policy is {policy}: a full Redis drops messages; set it to noeviction")


@queue.command()
@click.argument("name", metavar="QUEUE")
@json_option
def dead(name: str, as_json: bool) -> None:
    """Show what is buried, and why."""
    columns = ("dead_id", "entry_id", "message_id", "attempts", "reason", "error", "failed_at")
    print_rows(_queues().dead(name), columns, as_json=as_json)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="[ID]...", nargs=-1)
def replay(name: str, ids: tuple[str, ...]) -> None:
    """Put dead letters back on their queue: those named by dead, entry or message id, else all."""
    from activity_platform.audience.attempts import forget_attempts
    from activity_platform.gateways import postgres

    queues = _queues()
    database_url = load_settings(Need.DATABASE).database_url
    with postgres.connect(database_url, application_name="activity-platform queue replay") as connection:
        result = queues.replay(
            name, ids, forget=lambda message_ids: forget_attempts(connection, name, message_ids)
        )
    print_json({"queue": name, "replayed": len(result.message_ids), "message_ids": result.message_ids})
    if result.missing:
        raise PermanentFailure(f"no dead letter of {name} is named {', '.join(result.missing)}")


@main.group(name="last-activity")
def last_activity() -> None:
    """When each LINE user last did something."""


@last_activity.command()
def drain() -> None:
    """Work until the queue is empty; prints one JSON line."""
    from activity_platform.gateways.queue import Queues, connect
    from activity_platform.last_activity.drain import drain as drain_queue

    settings = load_settings(Need.DATABASE, Need.REDIS)
    print_json(drain_queue(settings.database_url, Queues(connect(settings.redis_url))))
