"""The official accounts' channel access tokens, each tried with one call to LINE."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg

from activity_platform.doctor.finding import Finding, ok, red, warn
from activity_platform.gateways import postgres
from activity_platform.gateways.line_api import LineApi, NoAnswer, Refused
from activity_platform.settings import Settings

AT_ONCE = 10
#: Accounts beyond these are not tried: the look must end in time.
MOST_ACCOUNTS = 500

ACCOUNTS = """
SELECT id, coalesce(channel_access_token, '') FROM line_oa ORDER BY id LIMIT %s
"""


def look(settings: Settings) -> Iterator[Finding]:
    """A line for each account whose token fails, and one for those whose token is good."""
    with (
        postgres.outages_named(),
        postgres.connect(settings.database_url, application_name="activity-platform doctor") as connection,
    ):
        try:
            accounts = connection.execute(ACCOUNTS, [MOST_ACCOUNTS]).fetchall()
        except psycopg.errors.UndefinedTable:
            yield warn("line", "not looked at: the table line_oa is not there", "cure the migrations first")
            return
    if not accounts:
        yield ok("line", "no official account is there yet")
        return
    found = asyncio.run(_try_all(settings.line_api_base_url, accounts))
    good = sum(finding is None for finding in found)
    yield from (finding for finding in found if finding)
    if good:
        yield ok("line", f"LINE accepts the tokens of {good} of {len(accounts)} accounts")


async def _try_all(base_url: str, accounts: list[tuple[int, str]]) -> list[Finding | None]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def attempt(account: int, token: str) -> Finding | None:
        async with slots:
            return await _try(base_url, account, token)

    return await asyncio.gather(*(attempt(*account) for account in accounts))


async def _try(base_url: str, account: int, token: str) -> Finding | None:
    cure = f"issue a token for OA {account} and store it in line_oa.channel_access_token"
    if not token:
        what = f"OA {account} has no channel access token: its audiences can't be imported"
        return warn("line", what, cure)
    try:
        async with LineApi(base_url, token) as api:
            await api.check_token()
    except Refused as error:
        return red("line", f"OA {account}: {error}", cure)
    except NoAnswer as error:
        return warn("line", f"OA {account}: {error}", "see LINE's status page and LINE_API_BASE_URL")
    return None
