"""An import from a terminal: the file is uploaded, its message queued, then watched."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import msgspec
import psycopg

from activity_platform.audience.accounts import AudienceKey
from activity_platform.audience.interfaces import Storage
from activity_platform.gateways.queue import CREATE_AUDIENCE, UPDATE_AUDIENCE, Queues

_FIND_IMPORT = """
SELECT status, reason, stats, result_path, rejects_path FROM audience_import
WHERE queue = %s AND message_id = %s
"""


@dataclass(frozen=True)
class QueuedImport:
    """A message on its queue."""

    queue: str
    message_id: str
    file_path: str


@dataclass(frozen=True)
class ImportProgress:
    """How far an import is. `status` is `queued` before its first attempt, else that of its history row."""

    status: str
    reason: str | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    result_path: str | None = None
    rejects_path: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("done", "partial", "skipped", "failed")


def queue_import(
    storage: Storage, queues: Queues, audience: AudienceKey, *, name: str, data: bytes, create: bool
) -> QueuedImport:
    """Uploads `data` under a name of its own and queues the message that sets the audience to its ids."""
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    path = f"uploads/audience-{audience.audience_id}-{stamp}{PurePath(name).suffix}"
    storage.put(path, data, content_type="application/octet-stream")
    payload = {
        "audienceId": audience.audience_id,
        "lineOaId": audience.line_oa_id,
        "organizationId": audience.organization_id,
        "filePath": path,
    }
    queue = CREATE_AUDIENCE if create else UPDATE_AUDIENCE
    message_id = f"terminal-{stamp}"
    queues.publish(queue, msgspec.json.encode(payload), message_id=message_id)
    return QueuedImport(queue, message_id, path)


def find_progress(connection: psycopg.Connection, queued: QueuedImport) -> ImportProgress:
    """How far it is now."""
    row = connection.execute(_FIND_IMPORT, [queued.queue, queued.message_id]).fetchone()
    return ImportProgress(*row) if row else ImportProgress("queued")
