"""Commands on audiences: audience, oa, triggers."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from activity_platform.console import FAILED, json_option, load_settings, print_json, print_rows, say
from activity_platform.failures import UsageError
from activity_platform.settings import Need

if TYPE_CHECKING:
    import psycopg

    from activity_platform.audience.upload import ImportProgress, QueuedImport

AUDIENCE_NEEDS = (Need.DATABASE, Need.REDIS, Need.OBJECTS)
LOOK_SECONDS = 0.5
IDLE_HINT_SECONDS = 30


def _connect(database_url: str) -> psycopg.Connection:
    from activity_platform.gateways import postgres

    return postgres.connect(database_url, application_name="activity-platform audience")


@click.group()
def audience() -> None:
    """Work through the audience queues, or import a file."""


@audience.command()
def process() -> None:
    """Work until the audience queues are empty; prints a JSON line for each message once it has ended."""
    from activity_platform.audience.integration import open_services
    from activity_platform.audience.worker import process_queues

    settings = load_settings(*AUDIENCE_NEEDS)
    with open_services(settings, log=logging.getLogger("activity_platform.audience")) as services:
        for result in process_queues(services):
            if result.ended:
                print_json(result)
            else:
                attempt = f"{result.queue} {result.entry_id}: attempt {result.attempts}"
                say(f"{attempt} failed ({result.reason}), another one follows")


@audience.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--audience", "audience_id", type=click.IntRange(1), required=True, metavar="ID")
@click.option("--create", "name", metavar="NAME", help="Create the audience under this name; takes --oa.")
@click.option("--oa", "oa_id", type=click.IntRange(1), metavar="ID", help="The account it belongs to.")
def import_file(file: Path, audience_id: int, name: str | None, oa_id: int | None) -> None:
    """Set an audience to the LINE user ids of FILE, and follow the run that does it."""
    from activity_platform.audience.accounts import add_audience, find_audience
    from activity_platform.audience.upload import queue_import
    from activity_platform.gateways.object_store import ObjectStore, s3_client
    from activity_platform.gateways.queue import Queues, connect

    if (name is None) != (oa_id is None):
        raise UsageError("--create and --oa go together: the new audience's name and its official account")
    settings = load_settings(*AUDIENCE_NEEDS)
    with _connect(settings.database_url) as connection:
        if name is not None and oa_id is not None:
            target = add_audience(connection, audience_id, name=name, line_oa_id=oa_id)
        else:
            target = find_audience(connection, audience_id)
        queued = queue_import(
            ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket),
            Queues(connect(settings.redis_url)),
            target,
            name=file.name,
            data=file.read_bytes(),
            create=name is not None,
        )
        say(f"queued as {queued.message_id} on {queued.queue}")
        progress = _follow(connection, queued)
    print_json(progress)
    if progress.status == "failed":
        sys.exit(FAILED)


def _follow(connection: psycopg.Connection, queued: QueuedImport) -> ImportProgress:
    from rich.console import Console
    from rich.progress import Progress

    from activity_platform.audience.upload import find_progress

    started = time.monotonic()
    hinted = False
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("queued", total=None)
        while not (progress := find_progress(connection, queued)).ended:
            stats = progress.stats
            step = str(stats.get("step", progress.status))
            bar.update(task, description=step, completed=stats.get("done", 0), total=stats.get("of"))
            if progress.status == "queued" and not hinted and time.monotonic() - started > IDLE_HINT_SECONDS:
                say("nobody has taken it yet: is the daemon running? `audience process` does it here")
                hinted = True
            time.sleep(LOOK_SECONDS)
    return progress


@click.group()
def oa() -> None:
    """LINE official accounts."""


@oa.command()
@click.option("--organization", type=click.IntRange(1), required=True, metavar="ID")
@click.option("--id", "oa_id", type=click.IntRange(1), metavar="ID", help="Default: the next free one.")
@click.option("--hash", "oa_hash", metavar="TEXT", help="Its folder in the bucket; default: random.")
@click.option("--login-channel", metavar="ID")
def add(organization: int, oa_id: int | None, oa_hash: str | None, login_channel: str | None) -> None:
    """Add an account, or give an existing one a new channel access token, read from standard input."""
    from activity_platform.audience.accounts import add_oa

    asks = sys.stdin.isatty()
    token = click.prompt("token", hide_input=True, err=True) if asks else sys.stdin.readline().strip()
    if not token:
        raise UsageError("no channel access token on standard input: pipe it in")
    with _connect(load_settings(Need.DATABASE).database_url) as connection:
        print_json(
            add_oa(
                connection,
                organization_id=organization,
                token=token,
                oa_id=oa_id,
                oa_hash=oa_hash,
                login_channel_id=login_channel,
            )
        )


@oa.command(name="list")
@json_option
def list_accounts(as_json: bool) -> None:
    """Show the accounts, without their tokens."""
    from activity_platform.audience.accounts import list_oas

    with _connect(load_settings(Need.DATABASE).database_url) as connection:
        columns = ("id", "organization_id", "hash", "has_token", "login_channel_id")
        print_rows(list_oas(connection), columns, as_json=as_json)


@click.group()
def triggers() -> None:
    """Trigger rules on who came to an audience and who left it."""


@triggers.command(name="list")
@json_option
def list_rules(as_json: bool) -> None:
    """Show the rules and what they fired."""
    from activity_platform.audience import triggers as rules

    with _connect(load_settings(Need.DATABASE).database_url) as connection:
        columns = ("id", "audience_id", "on_event", "enabled", "firings", "unpublished", "problem")
        print_rows(rules.list_rules(connection), columns, as_json=as_json)


@triggers.command()
@json_option
def check(as_json: bool) -> None:
    """Show how many of today's members each rule would match; exit status 1 if a rule is wrong."""
    from activity_platform.audience import triggers as rules

    with _connect(load_settings(Need.DATABASE).database_url) as connection:
        checked = rules.check_rules(connection, now=datetime.now(UTC))
    print_rows(checked, ("id", "audience_id", "on_event", "enabled", "matches", "problem"), as_json=as_json)
    if any(rule.problem for rule in checked):
        sys.exit(FAILED)
