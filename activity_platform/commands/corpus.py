"""Commands on the history of events: export-corpus, audit-edges."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from activity_platform.console import FAILED, json_option, load_settings, print_rows, say
from activity_platform.settings import Need, Settings

if TYPE_CHECKING:
    from activity_platform.activity.audit import Difference, Scope
    from activity_platform.activity.corpus import Corpus


@click.command()
@json_option
def export_corpus(as_json: bool) -> None:
    """Export whole days of events into the training corpus, where they are missing or were changed."""
    from activity_platform.activity.corpus_export import export_days
    from activity_platform.activity.corpus_location import corpus_of

    settings = load_settings(Need.DATABASE, Need.OBJECTS)
    result = export_days(settings.database_url, corpus_of(settings))
    print_rows(result.days, ("day", "rows", "late", "bytes", "written"), as_json=as_json)
    say(f"{result.written} days written, {result.unchanged} as they were")


@click.command()
@click.option("--days", type=click.IntRange(1, 36_500), help="Only what events of the last days tell.")
@json_option
def audit_edges(days: int | None, as_json: bool) -> None:
    """Recompute the edges from all events, and show where the live ones differ."""
    from activity_platform.activity import audit

    settings = load_settings(Need.DATABASE)
    found = 0

    def counted(differences: Iterator[Difference]) -> Iterator[Difference]:
        nonlocal found
        for difference in differences:
            found += 1
            yield difference

    columns = ("kind", "actor_id", "edge_type", "target_type", "target_id", "expected", "found")
    with audit.audit_edges(settings.database_url, _corpus(settings), days=days) as audited:
        print_rows(counted(audited.differences), columns, as_json=as_json)
        _say_scope(audited.scope)
    say(f"differences: {found}")
    if found:
        sys.exit(FAILED)


def _corpus(settings: Settings) -> Corpus | None:
    if not settings.s3_bucket:
        say("S3_BUCKET is not set: days that are gone from the database are not known")
        return None
    from activity_platform.activity.corpus_location import corpus_of

    return corpus_of(settings)


def _say_scope(scope: Scope) -> None:
    since = "the first event" if scope.since.year == 1 else f"{scope.since:%Y-%m-%dT%H:%M:%SZ}"
    say(
        f"{scope.edges} edges compared with {scope.events} events folded from {since}"
        f" to {scope.watermark:%Y-%m-%dT%H:%M:%SZ}"
    )
    if scope.partly:
        say(f"{scope.partly} of the edges began before, and were compared with a part of their events")
    if scope.late:
        say(f"{scope.late} events came late, and may be in no edge")
    if scope.unknown:
        say(f"{scope.unknown} events were folded, and neither database nor training corpus has them any more")
