"""Forgets a LINE user of an official account, while imports and drains go on.

What goes:

- the row of line_user, and with it the membership in every audience; firings, sent or not, and the user's
  part in the stored plan of a running command;
- entries that name the user: last activities that wait, firings that were sent, dead letters of every queue;
- the cached copy, and what was remembered of LINE's 404;
- the lines of result and rejects CSVs, the current ones and those of earlier imports. The file that the
  multicast reads stays where it is, and `info.members` is told its new number of lines;
- the lines of uploaded files in the platform's bucket that an import or a waiting message of the account
  names. They came from a producer, but as they lie there, a retry or a replay would bring the user back.
  Files in other buckets are the producer's alone: they are counted, not touched.

An import that was at work when the uploads were rewritten may have read one before. It is waited for, and
then everything is gone through once more. A later import whose file names the id again is new data.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import stamina

from activity_platform import erasure_requests
from activity_platform.audience import erasure_entries, erasure_sql
from activity_platform.audience.erasure_ground import AudienceFiles, Ground, find_folder, open_ground
from activity_platform.audience.erasure_text import without_user
from activity_platform.audience.lock import AudienceBusy, audience_lock
from activity_platform.audience.result_files import CSV
from activity_platform.audience.upload_text import MOST_INFLATED_BYTES
from activity_platform.erasure_requests import Erasure, ErasureRequest, Kind
from activity_platform.gateways import known_missing, postgres
from activity_platform.gateways.object_store import ObjectMissing, ObjectTooLarge
from activity_platform.gateways.user_cache import UserCache
from activity_platform.settings import Settings

PATIENCE_SECONDS = 60.0
UPLOAD = "application/octet-stream"


@dataclass(frozen=True)
class LineErasure:
    """What was done. `uploads_left`: files that no erasure touches, in other buckets or too large."""

    erasure: Erasure
    uploads_left: int = 0


@dataclass(frozen=True)
class UserPreview:
    """What an erasure would find now; each of the `files` has to be looked into."""

    line_users: int
    memberships: int
    firings: int
    entries: int
    dead_letters: int
    files: int


def request_line_user(connection: psycopg.Connection, line_oa_id: int, line_user_id: str) -> ErasureRequest:
    """Records the request. Raises `UsageError` when there is no such account; a user needs no row."""
    find_folder(connection, line_oa_id)
    return erasure_requests.request(connection, Kind.LINE_USER, subject=line_user_id, line_oa_id=line_oa_id)


def preview_line_user(settings: Settings, line_oa_id: int, line_user_id: str) -> UserPreview:
    """Changes nothing. Raises `UsageError` when there is no such account."""
    with open_ground(settings, line_oa_id) as ground:
        find_folder(ground.connection, line_oa_id)
        return _preview(ground, line_user_id)


def erase_line_user(
    settings: Settings, request: ErasureRequest, *, patience_seconds: float = PATIENCE_SECONDS
) -> LineErasure:
    """Carries the request out. Raises `TransientFailure` when something is away, or an import at work for too
    long; what is done by then stays done."""
    with open_ground(settings, request.line_oa_id or 0, request) as ground:
        eraser = _Eraser(ground, str(request.subject))
        left = eraser.rewrite_uploads()
        running = ground.running()
        if not eraser.sweep() or running:
            ground.wait_for(running, patience_seconds)
            eraser.sweep(insist=True)
        return LineErasure(erasure_requests.finish(ground.connection, request.id), left)


def _preview(ground: Ground, line_user_id: str) -> UserPreview:
    values = {"line_oa_id": ground.line_oa_id, "user_id": _find_user(ground, line_user_id)}
    ((users, memberships, firings),) = ground.connection.execute(erasure_sql.COUNT_OF_USER, values)
    names = erasure_entries.naming_user(ground.line_oa_id, line_user_id)
    audiences = ground.audiences()
    return UserPreview(
        line_users=users,
        memberships=memberships,
        firings=firings,
        entries=erasure_entries.count_entries(ground.queues, erasure_entries.WAITING, names),
        dead_letters=erasure_entries.count_entries(ground.queues, erasure_entries.DEAD, names),
        files=sum(len(audience.results) for audience in audiences) + len(ground.uploads()),
    )


@dataclass(frozen=True)
class _Eraser:
    ground: Ground
    line_user_id: str

    def rewrite_uploads(self) -> int:
        """Returns how many files can't be rewritten."""
        left = 0
        for path in sorted(self.ground.uploads()):
            try:
                left += not self.ground.is_ours(path)
                if self.ground.is_ours(path) and self._rewrite(path, UPLOAD) is not None:
                    self.ground.add(uploads=1)
            except ObjectMissing:
                pass
            except ObjectTooLarge:  # for imports, too
                left += 1
        return left

    def sweep(self, *, insist: bool = False) -> bool:
        """Erases everything but uploads. Returns whether all files were free; with `insist`, raises
        `AudienceBusy` for one that was not."""
        self._erase_rows()
        self._erase_copies()
        self._erase_entries()
        free = True
        for audience in self.ground.audiences():
            try:
                self._rewrite_results(audience)
            except AudienceBusy:
                if insist:
                    raise
                free = False
        return free

    @stamina.retry(on=postgres.RETRYABLE, attempts=10, wait_initial=0.05, wait_max=1.0)
    def _erase_rows(self) -> None:
        connection = self.ground.connection
        with connection.transaction():
            user_id = _find_user(self.ground, self.line_user_id)
            if user_id is None:
                return
            values = {"line_oa_id": self.ground.line_oa_id, "user_id": user_id, "most": 1}
            self.ground.add(
                firings=connection.execute(erasure_sql.ERASE_FIRINGS_OF_USER, values).rowcount,
                planned_changes=connection.execute(erasure_sql.ERASE_CHANGES_OF_USER, values).rowcount,
                line_users=connection.execute(erasure_sql.ERASE_USERS, values).rowcount,
            )

    def _erase_copies(self) -> None:
        """After the row, from which a copy is made."""
        client = self.ground.client
        UserCache(client).forget([self.line_user_id])
        known_missing.forget_missing(client, self.ground.line_oa_id, self.line_user_id)

    def _erase_entries(self) -> None:
        """After the firings: whoever had one in hand to send it has sent it by then."""
        names = erasure_entries.naming_user(self.ground.line_oa_id, self.line_user_id)
        queues = self.ground.queues
        self.ground.add(entries=erasure_entries.erase_entries(queues, erasure_entries.WAITING, names))
        self.ground.add(dead_letters=erasure_entries.erase_entries(queues, erasure_entries.DEAD, names))

    def _rewrite_results(self, audience: AudienceFiles) -> None:
        """The audience's CSVs, and the number of members that is told of the current one. An erasure that was
        killed between the two is noticed by that number."""
        for path in sorted(audience.results):
            data = self._read(path)
            stale = path == audience.current and audience.members != str(_members(data))
            if data is None or (without_user(data, self.line_user_id) is None and not stale):
                continue
            with audience_lock(self.ground.connection, audience.audience_id):
                rest = self._rewrite(path, CSV)
                if rest is not None:
                    self.ground.add(result_files=1)
                if path == audience.current:
                    self._tell_members(audience.audience_id, path, rest or self._read(path))

    def _tell_members(self, audience_id: int, path: str, data: bytes | None) -> None:
        values = {"audience_id": audience_id, "path": path, "members": _members(data)}
        if data is not None:
            self.ground.connection.execute(erasure_sql.TELL_MEMBERS, values)

    def _rewrite(self, path: str, content_type: str) -> bytes | None:
        """Replaces a file that names the user by one that doesn't, which it returns; or `ObjectMissing`."""
        data = self.ground.store.get(path, most_bytes=MOST_INFLATED_BYTES)
        rest = without_user(data, self.line_user_id)
        if rest is not None:
            self.ground.store.put(path, rest, content_type=content_type)
        return rest

    def _read(self, path: str) -> bytes | None:
        try:
            return self.ground.store.get(path, most_bytes=MOST_INFLATED_BYTES)
        except ObjectMissing:
            return None


def _find_user(ground: Ground, line_user_id: str) -> int | None:
    values = {"line_oa_id": ground.line_oa_id, "line_user_id": line_user_id}
    row = ground.connection.execute(erasure_sql.FIND_USER, values).fetchone()
    return int(row[0]) if row else None


def _members(data: bytes | None) -> int:
    """How many members a result CSV holds, below its header."""
    return data.count(b"\n") - 1 if data else 0
