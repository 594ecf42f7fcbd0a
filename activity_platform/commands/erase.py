"""The command that forgets: erase."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from activity_platform.console import FAILED, json_option, load_settings, print_json, print_rows, say
from activity_platform.failures import PlatformError, UsageError
from activity_platform.settings import Need, Settings

if TYPE_CHECKING:
    import psycopg

    from activity_platform.erase import Outcome
    from activity_platform.erasure_requests import ErasureRequest

MOST_CHARACTERS = 256  # of a user's id
LINE_NEEDS = (Need.DATABASE, Need.REDIS, Need.OBJECTS)


@dataclass(frozen=True)
class _Target:
    """Whom to forget: what finds them, and what records the request."""

    settings: Settings
    preview: Callable[[], Any]
    record: Callable[[psycopg.Connection], ErasureRequest]


@dataclass(frozen=True)
class _Count:
    what: str
    count: int


@click.command()
@click.argument("user", required=False, metavar="[USER]")
@click.option("--line-user", type=(click.IntRange(1), str), metavar="OA USER", help="A user of an account.")
@click.option("--oa", "oa_id", type=click.IntRange(1), metavar="OA", help="A whole official account.")
@click.option("--pending", is_flag=True, help="What was asked for and is not finished.")
@click.option("--dry-run", is_flag=True, help="Only count what there is.")
@click.option("--background", is_flag=True, help="Only record it; Dagster's erase_job does it.")
@click.option("--no-files", is_flag=True, help="Where no training files were ever written.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def erase(
    user: str | None,
    line_user: tuple[int, str] | None,
    oa_id: int | None,
    *,
    pending: bool,
    dry_run: bool,
    background: bool,
    no_files: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget a USER of the activity log, a LINE user of an account, or an account.

    Older training files are rewritten by Dagster's erase_job, or by `erase --pending`.
    """
    if sum([user is not None, line_user is not None, oa_id is not None, pending]) != 1:
        raise UsageError("name one of USER, --line-user OA USER, --oa OA or --pending")
    if pending:
        _carry_on(as_json, no_files=no_files)
        return
    if user is not None:
        target = _user(_storable(user), may_lack_files=no_files or background, no_files=no_files)
    elif line_user is not None:
        target = _line_user(line_user[0], _storable(line_user[1]))
    else:
        target = _oa(oa_id or 0)
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not yes
    if dry_run or asks:
        _print_counts(asdict(target.preview()), as_json)
    if dry_run:
        return
    if asks:
        click.confirm("erase all of this", abort=True, err=True)
    with closing(_connect(target.settings)) as connection:
        request = target.record(connection)
        if background:
            _print_erasure(connection, request, as_json)
            return
    _report(_carry_out(target.settings, request, older_files=False), as_json)


def _user(user: str, *, may_lack_files: bool, no_files: bool) -> _Target:
    from activity_platform import erasure_requests
    from activity_platform.activity.erasure import preview

    settings = load_settings(Need.DATABASE)
    if no_files:
        settings = replace(settings, s3_bucket="")
    elif not settings.s3_bucket and not may_lack_files:
        raise UsageError(
            "S3_BUCKET is not set, so training files can't be rewritten: set it, or say --no-files where none"
            " was ever written"
        )
    return _Target(
        settings,
        lambda: preview(settings, user),
        lambda connection: erasure_requests.request(connection, erasure_requests.Kind.USER, subject=user),
    )


def _line_user(oa_id: int, user: str) -> _Target:
    from activity_platform.audience.erasure import preview_line_user, request_line_user

    settings = load_settings(*LINE_NEEDS)
    return _Target(
        settings,
        lambda: preview_line_user(settings, oa_id, user),
        lambda connection: request_line_user(connection, oa_id, user),
    )


def _oa(oa_id: int) -> _Target:
    from activity_platform.audience.erasure_oa import preview_oa, request_oa

    settings = load_settings(*LINE_NEEDS)
    return _Target(
        settings,
        lambda: preview_oa(settings, oa_id),
        lambda connection: request_oa(connection, oa_id),
    )


def _carry_on(as_json: bool, *, no_files: bool) -> None:
    from activity_platform import erasure_requests

    settings = load_settings(Need.DATABASE)
    with closing(_connect(settings)) as connection:
        requests = erasure_requests.pending(connection)
    if not requests:
        say("nothing is pending")
    failed = False
    for request in requests:
        if request.kind is erasure_requests.Kind.USER and not settings.s3_bucket and not no_files:
            raise UsageError(
                "S3_BUCKET is not set, so training files can't be rewritten: set it, or say --no-files"
            )
        try:
            _report(_carry_out(settings, request, older_files=True), as_json)
        except PlatformError as error:
            say(f"erasure {request.id}: {error}")
            failed = True
    if failed:
        sys.exit(FAILED)


def _carry_out(settings: Settings, request: ErasureRequest, *, older_files: bool) -> Outcome:
    from rich.console import Console
    from rich.progress import Progress

    from activity_platform.erase import carry_out

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"erasure {request.id}", total=None)
        return carry_out(
            settings,
            request,
            older_files=older_files,
            tell=lambda day: bar.update(task, description=f"training files: {day}"),
        )


def _report(outcome: Outcome, as_json: bool) -> None:
    _print(outcome.erasure, as_json)
    if outcome.files_waiting:
        say(
            f"{outcome.files_waiting} older training files are looked through in the background: erase_job"
            " does it, or `activity-platform erase --pending`"
        )
    if outcome.uploads_left:
        say(
            f"{outcome.uploads_left} uploaded files were left as they are, in other buckets or too large:"
            " see audience_import.source_path"
        )


def _print_erasure(connection: psycopg.Connection, request: ErasureRequest, as_json: bool) -> None:
    from activity_platform import erasure_requests

    _print(erasure_requests.read(connection, request.id), as_json)


def _print(erasure: Any, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        print_json({"erasure": erasure.id, "status": erasure.status, **_shown(erasure)})
        return
    say(f"erasure {erasure.id} is {erasure.status}")
    _print_counts(erasure.counts, as_json)


def _shown(erasure: Any) -> dict[str, Any]:
    return {name: getattr(erasure, name) for name in ("kind", "requested_at", "finished_at", "counts")}


def _print_counts(counts: Any, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        print_json(counts)
        return
    print_rows(
        [_Count(what.replace("_", " "), count) for what, count in counts.items()],
        ("what", "count"),
        as_json=False,
    )


def _storable(user: str) -> str:
    storable = user.isprintable() or not any("\ud800" <= one <= "\udfff" or one == "\0" for one in user)
    if not user.strip() or len(user) > MOST_CHARACTERS or not storable:
        raise UsageError(f"a user's id has 1 to {MOST_CHARACTERS} characters and is not blank")
    return user


def _connect(settings: Settings) -> psycopg.Connection:
    from activity_platform.gateways import postgres

    return postgres.connect(settings.database_url, application_name="activity-platform erase")
