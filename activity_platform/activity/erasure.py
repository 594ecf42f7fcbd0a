"""Forgets a user of the activity log: in the database first, then in the training corpus.

    rows     log, edges, keys (`erasure_rows`)
    hot      files of the corpus whose month the log still holds, at once
    older    the others, at once or in the background

The request stays pending, and names the user, until the last file is rewritten. It is carried out from its
start each time: what was done before is found done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from activity_platform import erasure_requests
from activity_platform.activity import erasure_rows
from activity_platform.erasure_requests import Erasure, ErasureRequest
from activity_platform.gateways import postgres
from activity_platform.settings import Settings

if TYPE_CHECKING:
    from activity_platform.activity.corpus import Corpus

APPLICATION = "activity-platform erase"


@dataclass(frozen=True)
class Preview:
    """What an erasure would find now. `training_files` are all of the corpus: each has to be looked into."""

    events: int
    edges: int
    idempotency_keys: int
    training_files: int


@dataclass(frozen=True)
class UserErasure:
    """How far an erasure is. `files_waiting` are left to whoever carries it on."""

    erasure: Erasure
    files_waiting: int


def preview(settings: Settings, user_id: str) -> Preview:
    """Changes nothing. Without S3_BUCKET there is no corpus."""
    rows = erasure_rows.count_rows(settings.database_url, user_id)
    files = _corpus(settings)
    return Preview(rows.events, rows.edges, rows.idempotency_keys, len(files.days()) if files else 0)


def erase_user(
    settings: Settings,
    request: ErasureRequest,
    *,
    older_files: bool,
    tell: Callable[[date], object] = lambda _: None,
) -> UserErasure:
    """Carries the request out, without `older_files` only as far as the log reaches back.

    Without S3_BUCKET there is no corpus. `tell` hears of each day that was looked into. Raises
    `TransientFailure` when something is away or in the way; what is done by then stays done.
    """
    files = _corpus(settings)
    waiting = 0
    with (
        postgres.outages_named(),
        closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection,
        erasure_requests.only_eraser(connection, request.id),
    ):
        erasure_rows.erase_rows(settings.database_url, request)
        if files is not None:
            from activity_platform.activity import erasure_files

            days = erasure_files.find_days(connection, files)
            erasure_files.rewrite(connection, files, request, days.hot, tell=tell)
            if older_files:
                erasure_files.rewrite(connection, files, request, days.older, tell=tell)
            else:
                waiting = len(days.older)
        record = erasure_requests.read if waiting else erasure_requests.finish
        return UserErasure(record(connection, request.id), waiting)


def _corpus(settings: Settings) -> Corpus | None:
    if not settings.s3_bucket:
        return None
    # Parquet and S3 take a second to import, and activity alone needs neither.
    from activity_platform.activity.corpus_location import corpus_of

    return corpus_of(settings)
