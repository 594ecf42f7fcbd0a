"""Commands on events, edges and months: rollup, edges, partitions."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from activity_platform.console import FAILED, json_option, load_settings, print_json, print_rows, say
from activity_platform.failures import UsageError
from activity_platform.settings import Need


@click.command()
def rollup() -> None:
    """Fold events into edges until caught up."""
    from activity_platform.activity.rollup import fold

    settings = load_settings(Need.DATABASE)
    result = fold(settings.database_url, lag_seconds=settings.rollup_lag_seconds)
    if result.busy:
        say("another fold is under way; nothing done")
    print_json(result)


@click.command()
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


@click.group()
def partitions() -> None:
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


@partitions.command()
@now_option
@json_option
def plan(now_text: str | None, as_json: bool) -> None:
    """Say what maintenance would do."""
    _maintain(now_text, as_json, dry_run=True)


@partitions.command()
@now_option
@json_option
def apply(now_text: str | None, as_json: bool) -> None:
    """Do it."""
    _maintain(now_text, as_json, dry_run=False)


def _maintain(now_text: str | None, as_json: bool, *, dry_run: bool) -> None:
    from activity_platform.activity.maintenance import maintain_log

    now = _timestamp(now_text)
    result = maintain_log(load_settings(Need.DATABASE), now=now, dry_run=dry_run)
    print_rows(result.steps, ("action", "partition", "reason"), as_json=as_json)
    if result.failed:
        say(f"{result.failed} steps failed")
        sys.exit(FAILED)
