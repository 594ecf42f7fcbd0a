"""Official accounts and audiences added at a terminal; in production the CMS writes these rows."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import psycopg

from activity_platform.failures import UsageError

_COLUMNS = "id, organization_id, hash, coalesce(channel_access_token, '') <> '', login_channel_id"
# Without an id, the next one of the identity that is free: rows with ids of the CMS's own don't move it.
_ADD_OA = f"""
INSERT INTO line_oa (id, organization_id, hash, channel_access_token, login_channel_id)
VALUES (coalesce(%(id)s, nextval(pg_get_serial_sequence('line_oa', 'id'))), %(organization_id)s, %(hash)s,
        %(token)s, %(login_channel_id)s)
ON CONFLICT (id) DO UPDATE SET channel_access_token = EXCLUDED.channel_access_token
    WHERE line_oa.organization_id = EXCLUDED.organization_id
RETURNING {_COLUMNS}
"""  # noqa: S608 - the columns are the constant above
_LIST_OAS = f"SELECT {_COLUMNS} FROM line_oa ORDER BY id"  # noqa: S608 - likewise
_ADD_AUDIENCE = """
INSERT INTO audience (id, organization_id, line_oa_id, name)
SELECT %(id)s, organization_id, id, %(name)s FROM line_oa WHERE id = %(line_oa_id)s
ON CONFLICT (id) DO NOTHING
RETURNING organization_id
"""
_FIND_AUDIENCE = "SELECT id, line_oa_id, organization_id FROM audience WHERE id = %s AND deleted_at IS NULL"


@dataclass(frozen=True)
class OfficialAccount:
    """A row of `line_oa`, without its token."""

    id: int
    organization_id: int
    hash: str
    has_token: bool
    login_channel_id: str | None


@dataclass(frozen=True)
class AudienceKey:
    """What a message about an audience names it by."""

    audience_id: int
    line_oa_id: int
    organization_id: int


def add_oa(
    connection: psycopg.Connection,
    *,
    organization_id: int,
    token: str,
    oa_id: int | None = None,
    oa_hash: str | None = None,
    login_channel_id: str | None = None,
) -> OfficialAccount:
    """Adds an account; one of that id gets the token. `oa_hash` names its folder in S3 (default: random).

    Raises `UsageError` when the id is another organization's.
    """
    row = connection.execute(
        _ADD_OA,
        {
            "id": oa_id,
            "organization_id": organization_id,
            "hash": oa_hash or secrets.token_hex(16),
            "token": token,
            "login_channel_id": login_channel_id,
        },
    ).fetchone()
    if row is None:
        raise UsageError(f"official account {oa_id} belongs to another organization")
    return OfficialAccount(*row)


def list_oas(connection: psycopg.Connection) -> list[OfficialAccount]:
    """All accounts, by id."""
    return [OfficialAccount(*row) for row in connection.execute(_LIST_OAS)]


def add_audience(
    connection: psycopg.Connection, audience_id: int, *, name: str, line_oa_id: int
) -> AudienceKey:
    """Adds an audience of the account. Raises `UsageError` for an id that is taken or an unknown account."""
    values = {"id": audience_id, "name": name, "line_oa_id": line_oa_id}
    row = connection.execute(_ADD_AUDIENCE, values).fetchone()
    if row is None:
        raise UsageError(
            f"audience {audience_id} can't be created: its id is taken, or there is no official account"
            f" {line_oa_id} (see `activity-platform oa list`)"
        )
    return AudienceKey(audience_id, line_oa_id, row[0])


def find_audience(connection: psycopg.Connection, audience_id: int) -> AudienceKey:
    """Raises `UsageError` when there is no such audience, or when it is deleted."""
    row = connection.execute(_FIND_AUDIENCE, [audience_id]).fetchone()
    if row is None:
        raise UsageError(f"there is no audience {audience_id}: create it with --create NAME --oa ID")
    return AudienceKey(*row)
