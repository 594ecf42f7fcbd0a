"""Group commit: requests that come at the same time share one transaction, and each waits for its own rows.

While one transaction is under way, the next requests gather. So a batch grows with the load by itself and a
lone request waits for nobody. A few connections write side by side: one works while another waits for the
disk.

Nobody is told of an outcome that isn't known: a batch whose connection broke before its COMMIT was sent is
written again once; one that broke during COMMIT is looked for in the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import AsyncConnection

from activity_platform.activity import event_log
from activity_platform.activity.event_log import OutcomeUnknown, Submission, Transaction
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways import postgres
from activity_platform.ingest.metrics import Metrics

CONNECTIONS = 2
MAX_BATCH_BYTES = 4 * 1024 * 1024  # keeps a transaction short: some 30,000 usual events
MAX_QUEUED_BYTES = 64 * 1024 * 1024
MAX_QUEUED_REQUESTS = 5_000
MAX_QUEUED_SECONDS = 10.0
MAX_ATTEMPTS = 2
SETTLE_SECONDS = 30.0
SETTLE_POLL_SECONDS = 0.2
SWEEP_SECONDS = 0.5

#: The session's own limits: a lock that is not given in time and a process that stopped in the middle of a
#: transaction must not hold up the fold. A 202 promises durable rows, whatever the database's default is.
SESSION = """
SELECT set_config('lock_timeout', '5s', false),
       set_config('idle_in_transaction_session_timeout', '10s', false),
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false) END
"""

logger = logging.getLogger(__name__)


class QueueFull(TransientFailure):
    """More waits to be written than this process takes, or has waited for too long."""


class Unconfirmed(TransientFailure):
    """The connection broke during COMMIT, and the database did not come back in time to tell the outcome."""


class EventsRefused(PermanentFailure):
    """PostgreSQL refuses these events, whatever they are written with."""


@dataclass(eq=False)
class Waiting:
    """A submission on its way, and who waits for it."""

    submission: Submission
    outcome: asyncio.Future[int]
    since: float = field(default_factory=time.monotonic)
    attempts: int = 0

    def fail(self, failure: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(failure)

    def succeed(self, accepted: int) -> None:
        if not self.outcome.done():
            self.outcome.set_result(accepted)


class Writer:
    """The queue and its writing connections. Runs between `start` and `stop`, on one event loop."""

    def __init__(self, database_url: str, metrics: Metrics) -> None:
        self._database_url = database_url
        self._metrics = metrics
        self._queue: deque[Waiting] = deque()
        self._queued_bytes = 0
        self._arrival = asyncio.Event()
        self._unanswered = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def check_room(self) -> None:
        """Raises `QueueFull` when a further request would not be taken."""
        full = len(self._queue) >= MAX_QUEUED_REQUESTS or self._queued_bytes >= MAX_QUEUED_BYTES
        if full or self._stopping:
            raise QueueFull("more events wait than can be written at once")

    def start(self) -> None:
        for _ in range(CONNECTIONS):
            self._spawn(self._write_batches(Lane(self._database_url)))
        self._spawn(self._give_up_on_the_late())

    async def stop(self) -> None:
        """Takes nothing more, answers what was taken, and closes the connections."""
        self._stopping = True
        while self._unanswered:
            await asyncio.sleep(0.01)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self, submission: Submission) -> int:
        """Returns how many events were accepted, once they are durable.

        Raises `QueueFull`, `EventsRefused` or `postgres.DatabaseAway`: then none of them is stored. Raises
        `Unconfirmed` when nobody can tell.
        """
        self.check_room()
        waiting = Waiting(submission, asyncio.get_running_loop().create_future())
        self._unanswered += 1
        try:
            self._enqueue(waiting)
            return await waiting.outcome
        finally:
            self._unanswered -= 1

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, waiting: Waiting) -> None:
        self._queue.append(waiting)
        self._queued_bytes += len(waiting.submission.rows)
        self._arrival.set()

    def _dequeue(self) -> Waiting:
        waiting = self._queue.popleft()
        self._queued_bytes -= len(waiting.submission.rows)
        return waiting

    async def _write_batches(self, lane: Lane) -> None:
        try:
            while True:
                await self._write(lane, await self._next_batch())
        finally:
            await lane.close()

    async def _next_batch(self) -> list[Waiting]:
        """What waits, oldest first, up to the limit of a transaction."""
        batch: list[Waiting] = []
        while not batch:
            await self._arrival.wait()
            size = 0
            while self._queue and size < MAX_BATCH_BYTES:
                waiting = self._dequeue()
                if not waiting.outcome.done():  # else its client is gone
                    batch.append(waiting)
                    size += len(waiting.submission.rows)
            if not self._queue:
                self._arrival.clear()
        self._metrics.queue_depth(len(self._queue))
        return batch

    async def _write(self, lane: Lane, batch: Sequence[Waiting]) -> None:
        try:
            accepted = await event_log.append(await lane.connection(), [item.submission for item in batch])
        except postgres.DatabaseAway as away:
            _fail(batch, away)
        except OutcomeUnknown as unknown:
            self._spawn(self._settle(batch, unknown))
        except Exception as error:
            await self._after_error(lane, batch, error)
        else:
            self._answer(batch, accepted)

    def _answer(self, batch: Sequence[Waiting], accepted: Sequence[int]) -> None:
        self._metrics.batch_written(sum(item.submission.count for item in batch))
        for item, count in zip(batch, accepted, strict=True):
            item.succeed(count)

    async def _after_error(self, lane: Lane, batch: Sequence[Waiting], error: Exception) -> None:
        """Nothing of the batch is stored. Decides who tries again."""
        logger.warning("a batch of %d requests was not written: %s", len(batch), _kind(error))
        if lane.broken or isinstance(error, postgres.RETRYABLE):
            self._try_again(batch)
        elif not _is_the_requests_fault(error):
            await lane.close()  # another server may answer now, if this one takes no more writes
            _fail(batch, postgres.DatabaseAway(f"PostgreSQL does not take events: {_kind(error)}"))
        elif len(batch) == 1:
            _fail(batch, EventsRefused("PostgreSQL can't hold these events"))
        else:
            for item in batch:
                await self._write(lane, [item])

    def _try_again(self, batch: Sequence[Waiting]) -> None:
        for item in batch:
            item.attempts += 1
            if item.attempts < MAX_ATTEMPTS:
                self._enqueue(item)
            else:
                item.fail(postgres.DatabaseAway("PostgreSQL went away while the events were written"))

    async def _settle(self, batch: Sequence[Waiting], unknown: OutcomeUnknown) -> None:
        """Finds out whether the batch was committed, on new connections until one can tell."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            outcome = await self._look_up(unknown.transaction)
            if outcome is True:
                return self._answer(batch, unknown.accepted)
            if outcome is False:
                return self._try_again(batch)
            await asyncio.sleep(SETTLE_POLL_SECONDS)
        _fail(batch, Unconfirmed("PostgreSQL went away before it confirmed the events"))
        return None

    async def _look_up(self, transaction: Transaction) -> bool | None:
        lane = Lane(self._database_url)
        try:
            return await event_log.committed(await lane.connection(), transaction)
        except (postgres.DatabaseAway, psycopg.Error):
            return None
        finally:
            await lane.close()

    async def _give_up_on_the_late(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            while self._queue and now - self._queue[0].since > MAX_QUEUED_SECONDS:
                self._dequeue().fail(QueueFull("the events waited too long to be written"))


class Lane:
    """One writing connection, opened when it is needed and again after it broke."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._connection: AsyncConnection | None = None

    @property
    def broken(self) -> bool:
        return self._connection is None or self._connection.closed

    async def connection(self) -> AsyncConnection:
        """Raises `postgres.DatabaseAway`."""
        if self._connection is None or self._connection.closed:
            self._connection = None
            try:
                self._connection = await AsyncConnection.connect(
                    self._database_url,
                    autocommit=True,
                    application_name="activity-platform ingest",
                    **postgres.CONNECTION_PARAMETERS,
                )
                await self._connection.execute(SESSION)
            except psycopg.Error as error:
                raise postgres.DatabaseAway(f"PostgreSQL can't be reached: {_kind(error)}") from error
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _fail(batch: Sequence[Waiting], failure: Exception) -> None:
    for item in batch:
        item.fail(failure)


def _is_the_requests_fault(error: Exception) -> bool:
    """SQLSTATE classes 22 (data), 23 (constraint), 54 (limit of the program), or text that can't be sent."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state[:2] in ("22", "23", "54") if state else isinstance(error, psycopg.DataError | UnicodeError)


def _kind(error: Exception) -> str:
    """An error's name and code. Its text may quote the row that failed."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return f"{type(error).__name__} {state}" if state else type(error).__name__
