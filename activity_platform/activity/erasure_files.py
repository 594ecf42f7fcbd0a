"""A user leaves the training corpus, once the log holds nothing of them any more.

Days of the months that the log still holds are rewritten at once: whoever trains on fresh data reads these.
Older ones may be years; they are rewritten one after the other, in the background if one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date

import psycopg

from activity_platform import erasure_requests
from activity_platform.activity import corpus, corpus_rewrite
from activity_platform.activity.corpus import Corpus
from activity_platform.activity.partitions import read_catalog
from activity_platform.erasure_requests import ErasureRequest


@dataclass(frozen=True)
class Days:
    """The days of the corpus, ascending: those whose month the log still holds, and older ones."""

    hot: tuple[date, ...]
    older: tuple[date, ...]


def find_days(connection: psycopg.Connection, files: Corpus) -> Days:
    """What there is now. After the rows are gone and with the turn to write, nothing with the user in it can
    be added. On a connection in autocommit."""
    with corpus.writing(connection):
        days = files.days()
    lowers = [part.lower for part in read_catalog(connection).partitions if part.lower]
    first = min(lowers).astimezone(UTC).date() if lowers else date.min
    return Days(tuple(day for day in days if day >= first), tuple(day for day in days if day < first))


def rewrite(
    connection: psycopg.Connection,
    files: Corpus,
    request: ErasureRequest,
    days: Sequence[date],
    *,
    tell: Callable[[date], object],
) -> None:
    """Rewrites the files of those days that name the request's user, and counts in its row what is gone.

    May be repeated; what is done is read again and left alone.
    """
    for day in days:
        done = corpus_rewrite.rewrite_day(connection, files, day, [str(request.subject)])
        if done.removed:
            erasure_requests.add(connection, request.id, training_files=1, training_rows=done.removed)
        tell(day)
