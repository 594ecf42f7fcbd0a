"""Forgets a whole official account: users, audiences with their imports and files, rules, firings, messages.

The account's row with its token goes first, so that no command of it begins any more and those at work end
at their next step; they are waited for. Its folder in the bucket may hold what other programs put there: only
the audiences' CSVs and the uploads that imports or messages name are deleted, in the platform's own bucket.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import stamina

from activity_platform import erasure_requests
from activity_platform.audience import erasure_entries, erasure_sql
from activity_platform.audience.erasure import PATIENCE_SECONDS, LineErasure
from activity_platform.audience.erasure_ground import AudienceFiles, Ground, find_folder, open_ground
from activity_platform.audience.lock import audience_lock
from activity_platform.erasure_requests import ErasureRequest, Kind
from activity_platform.gateways import known_missing, postgres
from activity_platform.gateways.user_cache import UserCache
from activity_platform.settings import Settings

BATCH_ROWS = 5_000


@dataclass(frozen=True)
class OaPreview:
    """What an erasure would find now."""

    line_users: int
    audiences: int
    firings: int
    entries: int
    dead_letters: int
    files: int


def request_oa(connection: psycopg.Connection, line_oa_id: int) -> ErasureRequest:
    """Records the request, with the account's folder, which nobody else knows once its row is gone.

    Raises `UsageError` when there is no such account and no erasure of it under way.
    """
    for known in erasure_requests.pending(connection):
        if known.kind is Kind.LINE_OA and known.line_oa_id == line_oa_id:
            return known
    folder = find_folder(connection, line_oa_id)
    return erasure_requests.request(connection, Kind.LINE_OA, subject=folder, line_oa_id=line_oa_id)


def preview_oa(settings: Settings, line_oa_id: int) -> OaPreview:
    """Changes nothing. Raises `UsageError` when there is no such account."""
    with open_ground(settings, line_oa_id) as ground:
        find_folder(ground.connection, line_oa_id)
        return _preview(ground)


def erase_oa(
    settings: Settings, request: ErasureRequest, *, patience_seconds: float = PATIENCE_SECONDS
) -> LineErasure:
    """Carries the request out. Raises `TransientFailure` when something is away, or an import at work for too
    long; what is done by then stays done."""
    with open_ground(settings, request.line_oa_id or 0, request) as ground:
        eraser = _Eraser(ground)
        eraser.erase_account()
        uploads = eraser.erase_uploads()
        eraser.erase_entries()
        ground.wait_for(ground.running(), patience_seconds)
        uploads |= eraser.erase_uploads(but=uploads)
        eraser.erase_firings()
        for audience in ground.audiences():
            eraser.erase_audience(audience)
        eraser.erase_users()
        eraser.erase_entries()
        eraser.erase_folder()
        left = sum(not ground.is_ours(path) for path in uploads)
        return LineErasure(erasure_requests.finish(ground.connection, request.id), left)


def _preview(ground: Ground) -> OaPreview:
    values = {"line_oa_id": ground.line_oa_id}
    ((users, audiences, firings),) = ground.connection.execute(erasure_sql.COUNT_OF_OA, values)
    names = erasure_entries.naming_oa(ground.line_oa_id)
    return OaPreview(
        line_users=users,
        audiences=audiences,
        firings=firings,
        entries=erasure_entries.count_entries(ground.queues, erasure_entries.WAITING, names),
        dead_letters=erasure_entries.count_entries(ground.queues, erasure_entries.DEAD, names),
        files=sum(len(audience.results) for audience in ground.audiences()) + len(ground.uploads()),
    )


@dataclass(frozen=True)
class _Eraser:
    ground: Ground

    @property
    def _values(self) -> dict[str, Any]:
        return {"line_oa_id": self.ground.line_oa_id, "user_id": None, "most": BATCH_ROWS}

    def erase_account(self) -> None:
        self._erase(erasure_sql.ERASE_OA, "accounts")

    def erase_uploads(self, *, but: Set[str] = frozenset()) -> set[str]:
        """Before the messages and imports that name them. Returns all that are named, others' buckets too."""
        uploads = self.ground.uploads() - but
        ours = sorted(filter(self.ground.is_ours, uploads))
        for path in ours:
            self.ground.store.delete(path)
        self.ground.add(uploads=len(ours))
        return uploads

    def erase_entries(self) -> None:
        queues, names = self.ground.queues, erasure_entries.naming_oa(self.ground.line_oa_id)
        self.ground.add(entries=erasure_entries.erase_entries(queues, erasure_entries.WAITING, names))
        self.ground.add(dead_letters=erasure_entries.erase_entries(queues, erasure_entries.DEAD, names))

    def erase_firings(self) -> None:
        while self._erase(erasure_sql.ERASE_FIRINGS_OF_RULES, "firings") == BATCH_ROWS:
            pass
        self._erase(erasure_sql.ERASE_OTHER_FIRINGS, "firings")
        self._erase(erasure_sql.ERASE_RULES, "rules")

    def erase_audience(self, audience: AudienceFiles) -> None:
        """Files before the rows that name them."""
        connection, values = self.ground.connection, {"audience_id": audience.audience_id}
        with audience_lock(connection, audience.audience_id):
            for path in sorted(audience.results):
                self.ground.store.delete(path)
            with connection.transaction():
                for statement in (
                    erasure_sql.ERASE_PLANS,
                    erasure_sql.ERASE_ATTEMPTS,
                    erasure_sql.ERASE_PROCESSED,
                ):
                    connection.execute(statement, values)
                self.ground.add(
                    result_files=len(audience.results),
                    imports=connection.execute(erasure_sql.ERASE_IMPORTS, values).rowcount,
                    audiences=connection.execute(erasure_sql.ERASE_AUDIENCE, values).rowcount,
                )

    def erase_users(self) -> None:
        """Batch by batch, cached copies before the rows that say whose they are."""
        while self._erase_some_users() == BATCH_ROWS:
            pass
        known_missing.forget_all_missing(self.ground.client, self.ground.line_oa_id)

    def erase_folder(self) -> None:
        """CSVs that no row names any more."""
        keys = self.ground.listed_results()
        for key in keys:
            self.ground.store.delete(key)
        self.ground.add(result_files=len(keys))

    @stamina.retry(on=postgres.RETRYABLE, attempts=10, wait_initial=0.05, wait_max=1.0)
    def _erase_some_users(self) -> int:
        with self.ground.connection.transaction():
            gone = [row[0] for row in self.ground.connection.execute(erasure_sql.ERASE_USERS, self._values)]
            UserCache(self.ground.client).forget(gone)
            self.ground.add(line_users=len(gone))
        return len(gone)

    def _erase(self, statement: LiteralString, what: str) -> int:
        with self.ground.connection.transaction():
            gone = self.ground.connection.execute(statement, self._values).rowcount
            self.ground.add(**{what: gone})
        return gone
