"""The demo's events: sent over HTTP, folded by the schedule's run, read back over HTTP and compared."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from datetime import datetime

import httpx
import psycopg

from activity_platform.failures import PlatformError
from activity_platform.ingest.auth import development_token
from activity_platform.local.demo_traffic import Affinity, EdgeKey, Session, expected_edges, sessions
from activity_platform.settings import Settings

USERS = 300
EVENTS = 6_000
CONCURRENT_REQUESTS = 8
REQUEST_SECONDS = 30
MOST_EDGES = 500  # the API's own limit; no user of the demo has as many


class ActivityRoute:
    """Events in, edges out."""

    name = "activity events"

    def __init__(self, settings: Settings, api_url: str, ui_url: str) -> None:
        self._settings = settings
        self._api_url = api_url
        self._ui_url = ui_url
        # Users of this demo alone: edges of an earlier one on the same data stay out of the sums.
        self._sessions = list(sessions(USERS, EVENTS, prefix=f"demo-{secrets.token_hex(3)}-"))
        self._sent_until: datetime | None = None
        self.steps = len(self._sessions)

    @property
    def busiest_user(self) -> str:
        counts = Counter(session.user for session in self._sessions)
        return counts.most_common(1)[0][0]

    def send(self, advance: Callable[[], None]) -> str:
        accepted = asyncio.run(self._post_all(advance))
        with psycopg.connect(self._settings.database_url, autocommit=True) as connection:
            row = connection.execute("SELECT clock_timestamp()").fetchone()
        self._sent_until = row[0] if row else None
        return f"{accepted:,} events of {USERS} users accepted in {self.steps:,} requests"

    def awaited(self) -> str | None:
        with psycopg.connect(self._settings.database_url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT watermark >= %s, extract(epoch FROM clock_timestamp() - watermark)"
                " FROM activity_rollup_state WHERE name = 'interaction_edges'",
                [self._sent_until],
            ).fetchone()
        if row is None or row[0]:
            return None
        return "the fold, which the schedule starts every minute"

    def verify(self) -> str:
        expected = expected_edges(self._sessions)
        found = asyncio.run(self._read_all())
        if found != expected:
            wrong = sum(found.get(key) != expected.get(key) for key in found.keys() | expected.keys())
            raise PlatformError(f"{self.name}: {wrong} of {len(expected)} edges differ from what was sent")
        weight = sum(affinity.weight for affinity in found.values())
        return f"{len(found):,} edges of weight {weight:,.1f}, exactly what was sent"

    def link(self) -> str:
        return f"{self._ui_url}/assets/interaction_edges"

    async def _post_all(self, advance: Callable[[], None]) -> int:
        waiting = iter(self._sessions)
        async with self._client() as client:

            async def post_some() -> int:
                accepted = 0
                for session in waiting:
                    accepted += await self._post(client, session)
                    advance()
                return accepted

            return sum(await asyncio.gather(*(post_some() for _ in range(CONCURRENT_REQUESTS))))

    async def _post(self, client: httpx.AsyncClient, session: Session) -> int:
        answer = await client.post(
            "/api/v1/activity/events", headers=self._headers(session.user), json={"events": session.events}
        )
        if answer.status_code != httpx.codes.ACCEPTED:
            raise PlatformError(f"{self.name}: {answer.status_code} {answer.text[:200]}")
        return int(answer.json()["accepted"])

    async def _read_all(self) -> dict[EdgeKey, Affinity]:
        waiting = iter(sorted({session.user for session in self._sessions}))
        found: dict[EdgeKey, Affinity] = {}
        async with self._client() as client:

            async def read_some() -> None:
                for user in waiting:
                    found.update(await self._read(client, user))

            await asyncio.gather(*(read_some() for _ in range(CONCURRENT_REQUESTS)))
        return found

    async def _read(self, client: httpx.AsyncClient, user: str) -> dict[EdgeKey, Affinity]:
        answer = await client.get(
            "/api/v1/activity/edges", headers=self._headers(user), params={"limit": MOST_EDGES}
        )
        if answer.status_code != httpx.codes.OK:
            raise PlatformError(f"{self.name}: reading edges: {answer.status_code} {answer.text[:200]}")
        return {
            (user, edge["edge_type"], edge["target_type"], edge["target_id"]): Affinity(
                edge["weight"], edge["event_count"]
            )
            for edge in answer.json()["edges"]
        }

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._api_url, timeout=REQUEST_SECONDS)

    def _headers(self, user: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {development_token(self._settings, user)}"}
