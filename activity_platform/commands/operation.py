"""Commands that set up and serve a deployment: migrate, doctor, ingest, token."""

from __future__ import annotations

import contextlib
import sys

import click

from activity_platform.console import FAILED, json_option, load_settings, print_json, print_rows, say
from activity_platform.settings import Need


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; list what existing tables lack.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
    """Bring the database to this release, with partitions for the hot months."""
    from activity_platform import migrations
    from activity_platform.activity.maintenance import maintain_log

    settings = load_settings(Need.DATABASE, any_schema=True)
    if check:
        _list_lacks(settings.database_url, as_json=as_json)
        return
    revision = migrations.upgrade(settings.database_url)
    result = maintain_log(settings)
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


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look at everything the platform stands on; say what is wrong and how to cure it."""
    from activity_platform.doctor import Status, examine

    findings = list(examine(load_settings(Need.DATABASE, any_schema=True)))
    print_rows(findings, ("status", "check", "what", "cure"), as_json=as_json)
    if any(finding.status is Status.RED for finding in findings):
        sys.exit(FAILED)


@click.command()
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


@click.command()
@click.argument("subject", metavar="SUB")
@click.option("--scope", default="", help="Space-separated, such as edges:read.")
@click.option("--ttl", type=click.IntRange(1), default=3600, show_default=True, help="Seconds.")
def token(subject: str, scope: str, ttl: int) -> None:
    """Print a development token for a user (HS256 setups only)."""
    from activity_platform.ingest.auth import development_token

    click.echo(development_token(load_settings(Need.TOKENS), subject, scope=scope, ttl_seconds=ttl))
