"""The Celery worker that `drain` is measured against: one task, one UPDATE, one commit a message.

The database is that of DATABASE_URL, the broker that of Celery's own CELERY_BROKER_URL. Results are not kept,
and a process fetches many tasks at once: the settings that are fastest for small tasks.
"""

from __future__ import annotations

import os
from datetime import datetime

import celery
import psycopg

from activity_platform.last_activity.periods import FIRST

app = celery.Celery("benchmarks")
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=250,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)
_connections: list[psycopg.Connection] = []

UPDATE = """
UPDATE line_user
SET last_activity_type = %(type)s, last_activity_status = %(status)s, last_activity_period = %(period)s,
    last_activity_date = %(at)s
WHERE line_oa_id = %(line_oa_id)s AND line_user_id = %(line_user_id)s
    AND organization_id = %(organization_id)s AND (last_activity_date IS NULL OR last_activity_date < %(at)s)
"""


def _connection() -> psycopg.Connection:
    """The connection of this worker process, made for its first task."""
    if not _connections:
        _connections.append(psycopg.connect(os.environ["DATABASE_URL"], autocommit=True))
    return _connections[0]


def _update(message: dict[str, str], at: str) -> None:
    _connection().execute(
        UPDATE,
        {
            "type": message["activityType"],
            "status": message["activityStatus"],
            "period": FIRST,
            "at": datetime.fromisoformat(at),
            "line_oa_id": message["lineOaId"],
            "line_user_id": message["lineUserId"],
            "organization_id": message["organizationId"],
        },
    )


update_last_activity = app.task(_update, name="update_last_activity")
