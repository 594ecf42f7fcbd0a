"""What is forgotten of messages and imports once it is old, so much at a time.

Never forgotten: an audience's newest import, one whose result the audience names, one with a stored plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

#: By the BRIN index on processed_at.
FORGET_PROCESSED = """
DELETE FROM processed_message WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM processed_message WHERE processed_at < %(before)s LIMIT %(most)s
))
"""
#: Reads the table, which holds a row a message of these days.
FORGET_ATTEMPTS = """
DELETE FROM message_attempt WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM message_attempt
    WHERE greatest(last_attempt_at, heartbeat_at) < %(before)s LIMIT %(most)s
))
"""
#: By primary key in order, the rest by audience_import_audience and primary keys.
OLD_IMPORTS = """
SELECT old.id, old.result_path, old.rejects_path
FROM audience_import AS old
WHERE old.finished_at < %(before)s
  AND EXISTS (SELECT FROM audience_import AS newer
              WHERE newer.audience_id = old.audience_id AND newer.id > old.id)
  AND NOT EXISTS (SELECT FROM audience WHERE id = old.audience_id AND info ->> 'filePath' = old.result_path)
  AND NOT EXISTS (SELECT FROM audience_change WHERE import_id = old.id)
ORDER BY old.id LIMIT %(most)s
"""
#: Primary key.
FORGET_IMPORTS = "DELETE FROM audience_import WHERE id = ANY(%s)"


@dataclass(frozen=True)
class Forgotten:
    """Counts of rows and files. `more`: something was left for the next time."""

    processed_messages: int
    message_attempts: int
    imports: int
    files: int
    more: bool


def forget(
    connection: psycopg.Connection,
    delete_file: Callable[[str], object],
    *,
    now: datetime,
    message_days: int,
    import_days: int,
    most: int,
) -> Forgotten:
    """Forgets at most `most` rows of each table. On a connection in autocommit.

    A file goes before the row that names it: what is interrupted in between is done again.
    """
    messages = {"before": now - timedelta(days=message_days), "most": most}
    processed = connection.execute(FORGET_PROCESSED, messages).rowcount
    attempts = connection.execute(FORGET_ATTEMPTS, messages).rowcount
    imports = {"before": now - timedelta(days=import_days), "most": most}
    old = connection.execute(OLD_IMPORTS, imports).fetchall()
    paths = [path for _, *paths in old for path in paths if path]
    for path in paths:
        delete_file(path)
    connection.execute(FORGET_IMPORTS, [[identity for identity, *_ in old]])
    return Forgotten(processed, attempts, len(old), len(paths), most in (processed, attempts, len(old)))
