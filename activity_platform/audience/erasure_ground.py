"""What an erasure in an official account works on: its rows, streams, copies and files."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

import psycopg
import redis

from activity_platform import erasure_requests
from activity_platform.audience import erasure_entries, erasure_sql
from activity_platform.audience.attempts import SILENT_AFTER
from activity_platform.erasure_requests import ErasureRequest, Kind, only_eraser
from activity_platform.failures import TransientFailure, UsageError
from activity_platform.gateways import postgres, queue
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.settings import Settings

APPLICATION = "activity-platform erase"
SESSION = {
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
    "client_connection_check_interval": "2s",
}
POLL_SECONDS = 0.5

_AUDIENCE_FILE = re.compile(r"/audience-([0-9]{1,19})-[^/]*\.csv\Z")

#: Queue, message id and number of an attempt.
Attempt = tuple[str, str, int]


@dataclass(frozen=True)
class AudienceFiles:
    """The files of an audience. `current` is the one that the multicast reads, which `members` counts."""

    audience_id: int
    current: str | None
    members: str | None
    results: frozenset[str]
    uploads: frozenset[str]


@dataclass(frozen=True)
class Ground:
    """One account, on one connection in autocommit. `folder` is its hash, None when nobody knows it."""

    connection: psycopg.Connection
    client: redis.Redis
    store: ObjectStore
    request_id: int
    line_oa_id: int
    folder: str | None

    @property
    def queues(self) -> queue.Queues:
        return queue.Queues(self.client)

    def add(self, **counts: int) -> None:
        """Counts what is gone."""
        erasure_requests.add(self.connection, self.request_id, **counts)

    def audiences(self) -> list[AudienceFiles]:
        """All audiences of the account, deleted ones too. Their CSVs are those that imports name, and those
        in the account's folder that none does: an attempt that failed may have left one."""
        listed: defaultdict[int, list[str]] = defaultdict(list)
        for key in self.listed_results():
            if found := _AUDIENCE_FILE.search(key):
                listed[int(found[1])].append(key)
        rows = self.connection.execute(erasure_sql.AUDIENCES, {"line_oa_id": self.line_oa_id})
        return [
            AudienceFiles(
                audience_id,
                current,
                members,
                frozenset({*results, *listed[audience_id], *([current] if current else [])}),
                frozenset(uploads),
            )
            for audience_id, current, members, results, uploads in rows.fetchall()
        ]

    def uploads(self) -> set[str]:
        """The uploaded files that an import or a waiting message of the account names."""
        named = {path for audience in self.audiences() for path in audience.uploads}
        return named | erasure_entries.uploads_in(self.queues, self.line_oa_id)

    def is_ours(self, path: str) -> bool:
        """Whether a file lies in the platform's bucket."""
        return self.store.locate(path).bucket == self.store.locate("").bucket

    def running(self) -> frozenset[Attempt]:
        """The attempts at commands of the account that are at work now."""
        values = {"line_oa_id": self.line_oa_id, "silent": SILENT_AFTER}
        return frozenset(self.connection.execute(erasure_sql.RUNNING, values).fetchall())

    def wait_for(self, attempts: frozenset[Attempt], patience_seconds: float) -> None:
        """Returns once none of them is at work any more. Raises `TransientFailure` after the patience."""
        patience_ends = time.monotonic() + patience_seconds
        while attempts & self.running():
            if time.monotonic() > patience_ends:
                raise TransientFailure(
                    f"an import of the account has been at work for more than {patience_seconds:g} s:"
                    " start the erasure again once it has ended, or leave it to erase_job"
                )
            time.sleep(POLL_SECONDS)

    def listed_results(self) -> list[str]:
        """The CSVs in the account's folder."""
        keys = self.store.list_keys(f"private/{self.folder}/audience/") if self.folder else iter(())
        return [key for key in keys if _AUDIENCE_FILE.search(key)]


@contextmanager
def open_ground(
    settings: Settings, line_oa_id: int, request: ErasureRequest | None = None
) -> Iterator[Ground]:
    """The account; with a request, nobody else carries that out meanwhile.

    Where the account's row is gone already, the request for the account itself still knows the folder.
    """
    with (
        postgres.outages_named(),
        closing(postgres.connect(settings.database_url, application_name=APPLICATION)) as connection,
        closing(queue.connect(settings.redis_url)) as client,
        only_eraser(connection, request.id) if request else nullcontext(),
    ):
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        folder = _folder(connection, line_oa_id)
        if folder is None and request is not None and request.kind is Kind.LINE_OA:
            folder = request.subject
        store = ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
        yield Ground(connection, client, store, request.id if request else 0, line_oa_id, folder)


def find_folder(connection: psycopg.Connection, line_oa_id: int) -> str:
    """The hash that names the account's folder. Raises `UsageError` when there is no such account."""
    folder = _folder(connection, line_oa_id)
    if folder is None:
        raise UsageError(
            f"there is no official account {line_oa_id}: `activity-platform oa list` shows which there are"
        )
    return folder


def _folder(connection: psycopg.Connection, line_oa_id: int) -> str | None:
    row = connection.execute(erasure_sql.FIND_HASH, {"line_oa_id": line_oa_id}).fetchone()
    return row[0] if row else None
