"""An official account with known users, its audiences, and what the CMS does with them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import md5

import psycopg

from activity_platform.audience.integration import open_services
from activity_platform.audience.services import MessageResult, Services
from activity_platform.audience.worker import process_queues
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.gateways.queue import CREATE_AUDIENCE
from activity_platform.settings import Settings

ORGANIZATION = 1
LOG = logging.getLogger("benchmarks")

ADD_OA = """
    INSERT INTO line_oa (organization_id, hash, channel_access_token) VALUES (%s, 'bench', 'channel-token')
    RETURNING id
"""
ADD_AUDIENCE = """
    INSERT INTO audience (organization_id, line_oa_id, name) VALUES (%s, %s, 'Bench') RETURNING id
"""
ADD_USERS = """
    INSERT INTO line_user (organization_id, line_oa_id, line_user_id, display_name, language,
        last_activity_type, last_activity_status, last_activity_date, profile_fetched_at)
    SELECT %s, %s, 'U' || md5(n::text), 'Somebody ' || n, (ARRAY['th', 'en', 'ja'])[1 + n %% 3],
        'message', (ARRAY['active', 'inactive'])[1 + n %% 2],
        CASE WHEN n %% 4 > 0 THEN now() - n %% 60 * interval '1 day' END, now()
    FROM generate_series(1, %s) AS n
"""


@dataclass(frozen=True)
class Account:
    """`connection` is in autocommit; `services` are a worker's."""

    settings: Settings
    connection: psycopg.Connection
    services: Services
    store: ObjectStore
    line_oa_id: int

    def know(self, users: int) -> None:
        """From now on these users are the only ones, and in no audience."""
        self.connection.execute("TRUNCATE line_user RESTART IDENTITY")
        self.connection.execute(ADD_USERS, [ORGANIZATION, self.line_oa_id, users])
        self.connection.execute("VACUUM ANALYZE line_user")

    def upload(self, users: int) -> str:
        """A member file of so many of the users; returns its path."""
        path = f"uploads/{users}.csv"
        ids = "".join(f"{line_user_id(number)}\n" for number in range(1, users + 1))
        self.store.put(path, f"Line UserID\n{ids}".encode(), content_type="text/csv")
        return path

    def add_audience(self) -> int:
        ((audience,),) = self.connection.execute(ADD_AUDIENCE, [ORGANIZATION, self.line_oa_id])
        return int(audience)

    def create(self, audience: int, path: str) -> str:
        """Queues the command; returns its entry id."""
        payload = {
            "audienceId": audience,
            "lineOaId": self.line_oa_id,
            "organizationId": ORGANIZATION,
            "filePath": path,
        }
        return self.services.queues.publish(CREATE_AUDIENCE, json.dumps(payload))

    def process(self) -> MessageResult:
        """Works the one queued command off."""
        (result,) = process_queues(self.services)
        if result.status != "done":
            raise RuntimeError(f"{result.command} ended {result.status}: {result.error}")
        return result


@contextmanager
def account(settings: Settings) -> Iterator[Account]:
    store = ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket)
    with (
        psycopg.connect(settings.database_url, autocommit=True) as connection,
        open_services(settings, log=LOG) as services,
    ):
        ((line_oa_id,),) = connection.execute(ADD_OA, [ORGANIZATION])
        yield Account(settings, connection, services, store, line_oa_id)


def line_user_id(number: int) -> str:
    """That of the user of this number, as `ADD_USERS` makes it."""
    return f"U{md5(str(number).encode(), usedforsecurity=False).hexdigest()}"
