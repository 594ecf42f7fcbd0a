"""The users of an OA as the commands see them: who of a file is known, and what LINE says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import psycopg

from activity_platform.audience.interfaces import LineOa
from activity_platform.audience.member_ids import MemberIds
from activity_platform.gateways.line_api import Profile

STAGED_AT_ONCE = 10_000

_FIND_OA = """
SELECT id, organization_id, hash, coalesce(channel_access_token, '')
FROM line_oa WHERE id = %s AND organization_id = %s
"""
_STAGE = """
DROP TABLE IF EXISTS pg_temp.named_id;
CREATE TEMPORARY TABLE named_id (line_user_id text NOT NULL)
"""
# A hash join over the OA's users: for a large file one pass, for a small one the unique key's index.
_FIND_STALE = """
SELECT n.line_user_id FROM named_id n
WHERE NOT EXISTS (
    SELECT FROM line_user u
    WHERE u.line_oa_id = %s AND u.line_user_id = n.line_user_id AND u.profile_fetched_at >= %s
)
"""
# Every writer of line_user locks its rows in the order of their ids, so that no two of them deadlock.
_LOCK_KNOWN = """
SELECT FROM line_user WHERE line_oa_id = %(line_oa_id)s AND line_user_id = ANY(%(ids)s)
ORDER BY id FOR NO KEY UPDATE
"""
# By the unique key (line_oa_id, line_user_id); new rows come in one order, too. No picture or status message
# means that there is none; no language, that the user doesn't consent to tell it any more.
_UPSERT = """
INSERT INTO line_user AS known (
    organization_id, line_oa_id, line_user_id, display_name, picture_url, status_message, language,
    profile_fetched_at
)
SELECT %(organization_id)s, %(line_oa_id)s, p.*, %(now)s
FROM unnest(%(ids)s::text[], %(names)s::text[], %(pictures)s::text[], %(statuses)s::text[],
    %(languages)s::text[]) AS p (line_user_id, display_name, picture_url, status_message, language)
ORDER BY p.line_user_id
ON CONFLICT (line_oa_id, line_user_id) DO UPDATE SET
    display_name = EXCLUDED.display_name,
    picture_url = EXCLUDED.picture_url,
    status_message = EXCLUDED.status_message,
    language = coalesce(EXCLUDED.language, known.language),
    profile_fetched_at = EXCLUDED.profile_fetched_at,
    updated_at = EXCLUDED.profile_fetched_at
"""


def find_oa(connection: psycopg.Connection, line_oa_id: int, organization_id: int) -> LineOa | None:
    """The organization's OA of that id, with the token that it has now."""
    row = connection.execute(_FIND_OA, [line_oa_id, organization_id]).fetchone()
    return LineOa(*row) if row else None


def stage_ids(connection: psycopg.Connection, ids: MemberIds) -> None:
    """Puts the ids into the session's table `named_id`, for the statements that join with it."""
    connection.execute(_STAGE)
    with connection.cursor() as cursor:
        with cursor.copy("COPY named_id FROM STDIN") as copy:
            for piece in _pieces(ids):
                copy.write(piece)
        cursor.execute("ANALYZE named_id")  # nobody else does it for a temporary table


def stale_ids(connection: psycopg.Connection, line_oa_id: int, fresh_since: datetime) -> list[str]:
    """Those of the staged ids whose profile was never fetched, or before `fresh_since`."""
    return [row[0] for row in connection.execute(_FIND_STALE, [line_oa_id, fresh_since])]


def upsert_users(
    connection: psycopg.Connection, oa: LineOa, profiles: Sequence[Profile], *, now: datetime
) -> None:
    """Creates or refreshes the users. Their audiences and their last activity stay as they are."""
    values = {
        "organization_id": oa.organization_id,
        "line_oa_id": oa.line_oa_id,
        "ids": [profile.user_id for profile in profiles],
        "names": [profile.display_name for profile in profiles],
        "pictures": [profile.picture_url for profile in profiles],
        "statuses": [profile.status_message for profile in profiles],
        "languages": [profile.language for profile in profiles],
        "now": now,
    }
    with connection.transaction():
        connection.execute(_LOCK_KNOWN, values)
        connection.execute(_UPSERT, values)


def _pieces(ids: MemberIds) -> Iterator[str]:
    for start in range(0, len(ids), STAGED_AT_ONCE):
        yield "\n".join(ids[start : start + STAGED_AT_ONCE]) + "\n"
