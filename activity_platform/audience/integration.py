"""The real parts behind `interfaces`, made from the settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import redis.asyncio
import uvloop

from activity_platform.audience import firings, triggers
from activity_platform.audience.interfaces import LineOa
from activity_platform.audience.member_file import MemberFile, parse_member_file
from activity_platform.audience.profiles import Answers, FetchCounts, FetchPolicy, fetch_profiles
from activity_platform.audience.services import Services
from activity_platform.audience.upload_text import MOST_INFLATED_BYTES
from activity_platform.gateways import queue
from activity_platform.gateways.known_missing import KnownMissing
from activity_platform.gateways.line_api import LineApi
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.gateways.rate_limit import ChannelPermits, workers_of_a_run
from activity_platform.gateways.user_cache import UserCache
from activity_platform.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class UploadedFiles:
    """Member files in the object storage. The last one read is kept, for the next step of its command."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last: tuple[str, MemberFile] | None = None

    def read(self, path: str) -> MemberFile:
        """Raises what `ObjectStore.get` and `parse_member_file` raise."""
        self._last = None
        file = parse_member_file(self._store.get(path, most_bytes=MOST_INFLATED_BYTES))
        self._last = (path, file)
        return file

    def again(self, path: str) -> MemberFile:
        """What the last `read` found, if it was of this path; else it is read."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        return self.read(path)


@dataclass(frozen=True)
class LineProfiles:
    """LINE's profiles, at the channel's shared pace. An id that LINE has none of is remembered for
    `missing_hours`."""

    base_url: str
    redis_url: str = field(repr=False)
    per_second: int
    missing_hours: float
    policy: FetchPolicy = field(default_factory=FetchPolicy)

    def fetch(self, oa: LineOa, user_ids: Iterable[str], keep: Callable[[Answers], None]) -> FetchCounts:
        """See `profiles.fetch_profiles`. `keep` is called in another thread, never twice at once."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._fetch(oa, user_ids, keep))

    async def _fetch(
        self, oa: LineOa, user_ids: Iterable[str], keep: Callable[[Answers], None]
    ) -> FetchCounts:
        async def keep_in_thread(answers: Answers) -> None:
            await asyncio.to_thread(keep, answers)

        client = redis.asyncio.Redis.from_url(
            self.redis_url,
            socket_connect_timeout=queue.CONNECT_SECONDS,
            socket_timeout=queue.ANSWER_SECONDS,
        )
        async with client, LineApi(self.base_url, oa.token) as line:
            return await fetch_profiles(
                user_ids,
                line=line,
                permits=ChannelPermits(client, str(oa.line_oa_id), self.per_second),
                missing=KnownMissing(client, oa.line_oa_id, self.missing_hours),
                keep=keep_in_thread,
                policy=self.policy,
            )


@contextmanager
def open_services(
    settings: Settings,
    *,
    log: logging.Logger,
    s3: S3Client | None = None,
    policy: FetchPolicy | None = None,
) -> Iterator[Services]:
    """What the commands work with. `s3`: a client that is there already."""
    store = ObjectStore(s3 or s3_client(settings.s3_endpoint_url), settings.s3_bucket)
    with queue.connect(settings.redis_url) as client:
        queues = queue.Queues(client)
        yield Services(
            database_url=settings.database_url,
            queues=queues,
            files=UploadedFiles(store),
            storage=store,
            profiles=LineProfiles(
                base_url=settings.line_api_base_url,
                redis_url=settings.redis_url,
                per_second=settings.line_requests_per_second,
                missing_hours=settings.profile_fresh_hours,
                policy=policy or FetchPolicy(workers=workers_of_a_run(settings.line_requests_per_second)),
            ),
            cache=UserCache(client),
            evaluate=partial(triggers.evaluate, log=log),
            publish_firings=partial(firings.publish_firings, stream=queues),
            retry_seconds=settings.audience_retry_seconds,
            fresh=timedelta(hours=settings.profile_fresh_hours),
            clock=lambda: datetime.now(UTC),
            log=log,
        )
