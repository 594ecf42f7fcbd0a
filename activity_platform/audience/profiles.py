"""Asking LINE for the profiles of many users: bounded, paced, retried, and stopped when LINE refuses.

Each id ends once, as found, not found or unresolved, and is handed on in chunks while the rest is still being
asked for. What is done with the answers is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from activity_platform.gateways.line_api import NoAnswer, NotFound, Profile, RateLimited

RECALLED_AT_ONCE = 1_000

Sleep = Callable[[float], Awaitable[None]]


class ProfileFetcher(Protocol):
    """Answers for one user, or raises `line_api.NoAnswer` (try again) or `line_api.Refused` (stop)."""

    async def get_profile(self, user_id: str, /) -> Profile | NotFound: ...


class Permits(Protocol):
    """When the next request may be sent, over everybody who asks for the same channel."""

    async def take(self) -> None: ...

    async def slow_down(self, pause_seconds: float | None = None, /) -> None: ...


class MissingIds(Protocol):
    """The ids that LINE lately had no profile of, so that a repeated import doesn't ask for them again."""

    async def among(self, user_ids: Sequence[str], /) -> set[str]: ...

    async def remember(self, user_ids: Sequence[str], /) -> None: ...


@dataclass(frozen=True)
class FetchPolicy:
    """How hard LINE is asked, and how patiently. Times are seconds.

    - `workers`: requests under way at once. The default is `rate_limit.workers_of_a_run` of LINE's 2,000 a
      second; pass what it says of another limit.
    - `chunk`: ids that are asked for and not kept yet, at most: what a kill loses.
    - `chunk_seconds`: answers are handed on at least this often, so that people see progress.
    - `attempts` for one id, `first_wait` after the first, then twice as long up to `longest_wait`, each time
      with a random part of up to `jitter`, so that what failed together doesn't come back together.
    - `patience`: after so many ids in a row without any answer the rest is not asked for. LINE is down then,
      and a million ids with all their attempts would take days to find that out.
    """

    workers: int = 78
    chunk: int = 1_000
    chunk_seconds: float = 2.0
    attempts: int = 5
    first_wait: float = 0.5
    longest_wait: float = 10.0
    jitter: float = 0.5
    patience: int = 200


@dataclass(frozen=True)
class Answers:
    """What became of some of the ids."""

    found: tuple[Profile, ...] = ()
    not_found: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.found) + len(self.not_found) + len(self.unresolved)


@dataclass(frozen=True)
class FetchCounts:
    """How many ids ended how. `recalled` of those not found were known to be and not asked for again.

    `failure` says why the last unresolved id is one; `gave_up`, that the patience of the policy ended.
    """

    found: int = 0
    not_found: int = 0
    unresolved: int = 0
    recalled: int = 0
    gave_up: bool = False
    failure: str | None = None

    def plus(self, answers: Answers) -> FetchCounts:
        return replace(
            self,
            found=self.found + len(answers.found),
            not_found=self.not_found + len(answers.not_found),
            unresolved=self.unresolved + len(answers.unresolved),
        )


Keep = Callable[[Answers], Awaitable[None]]


async def fetch_profiles(
    user_ids: Iterable[str],
    *,
    line: ProfileFetcher,
    permits: Permits,
    missing: MissingIds,
    keep: Keep,
    policy: FetchPolicy = FetchPolicy(),
    sleep: Sleep = asyncio.sleep,
) -> FetchCounts:
    """Asks LINE for each of the distinct, well-formed `user_ids` and hands the answers to `keep` in chunks.

    `keep` is never called twice at once. As soon as LINE refuses (`line_api.Refused`) or the permits fail
    (`TransientFailure`), requests under way are dropped, the answers so far are kept, and that is raised.
    """
    unknown, counts = await _recall(user_ids, missing, keep)
    inquiry = _Inquiry(unknown, line, permits, policy, sleep)
    asking = asyncio.create_task(inquiry.run())
    try:
        while answers := await inquiry.next_answers():
            await keep(answers)
            await missing.remember(answers.not_found)
            inquiry.kept(len(answers))
            counts = counts.plus(answers)
        await asking
    finally:
        inquiry.stop()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return replace(counts, gave_up=inquiry.gave_up, failure=inquiry.failure)


async def _recall(user_ids: Iterable[str], missing: MissingIds, keep: Keep) -> tuple[list[str], FetchCounts]:
    """The ids that are not known to be missing; the others are handed on."""
    unknown: list[str] = []
    counts = FetchCounts()
    for batch in _batches(user_ids, RECALLED_AT_ONCE):
        recalled = await missing.among(batch)
        unknown += (user_id for user_id in batch if user_id not in recalled)
        if recalled:
            answers = Answers(not_found=tuple(recalled))
            await keep(answers)
            counts = replace(counts.plus(answers), recalled=counts.recalled + len(recalled))
    return unknown, counts


class _Inquiry:
    """What the workers share: the ids still to ask for, and the answers not yet handed on."""

    def __init__(
        self,
        user_ids: Iterable[str],
        line: ProfileFetcher,
        permits: Permits,
        policy: FetchPolicy,
        sleep: Sleep,
    ) -> None:
        self.gave_up = False
        self.failure: str | None = None
        self._user_ids = iter(user_ids)
        self._line = line
        self._permits = permits
        self._policy = policy
        self._ask = self._retrying(sleep).wraps(self._ask_once)
        self._silent = 0
        self._answers: list[Profile | NotFound | str] = []
        self._room = asyncio.Semaphore(policy.chunk)
        # One half of a chunk is asked for while the other is kept. With more workers than that, all the room
        # could be taken by ids under way.
        self._enough = max(1, policy.chunk // 2)
        self._workers = max(1, min(policy.workers, self._enough))
        self._ready = asyncio.Event()
        self._ended = False
        self._stopped = False

    async def run(self) -> None:
        """Returns when every id has ended. Raises the first failure that concerns more than one id."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._ended = True
            self._ready.set()

    async def next_answers(self) -> Answers | None:
        """The answers since the last call, once they are enough or their time has come; None at the end."""
        while not self._ended and len(self._answers) < self._enough:
            self._ready.clear()
            try:
                async with asyncio.timeout(self._policy.chunk_seconds):
                    await self._ready.wait()
            except TimeoutError:
                if self._answers:
                    break
        answers, self._answers = self._answers, []
        return _sorted_out(answers) if answers else None

    def kept(self, number: int) -> None:
        """So many answers are safe: as many further ids may be asked for."""
        for _ in range(number):
            self._room.release()

    def stop(self) -> None:
        """Lets the workers end at their next step. Cancelling alone is not enough: a library beneath that
        takes a cancellation for a failure of its own would leave its worker waiting for room for ever."""
        self._stopped = True
        for _ in range(self._workers):
            self._room.release()

    async def _work(self) -> None:
        for user_id in self._user_ids:
            await self._room.acquire()
            if self._stopped:
                return
            outcome = user_id if self.gave_up else await self._resolve(user_id)
            self._answers.append(outcome)
            if len(self._answers) >= self._enough:
                self._ready.set()

    async def _resolve(self, user_id: str) -> Profile | NotFound | str:
        """The answer, or the id itself when there was none."""
        try:
            answer = await self._ask(user_id)
        except NoAnswer as error:
            self.failure = str(error)
            self._silent += 1
            self.gave_up |= self._silent >= self._policy.patience
            return user_id
        self._silent = 0
        return answer

    async def _ask_once(self, user_id: str) -> Profile | NotFound:
        await self._permits.take()
        try:
            return await self._line.get_profile(user_id)
        except RateLimited as error:
            # The limit is the channel's: everybody who asks for it is slowed, not only this id.
            await self._permits.slow_down(error.retry_after)
            raise

    def _retrying(self, sleep: Sleep) -> AsyncRetrying:
        policy = self._policy
        return AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, NoAnswer) and not self.gave_up),
            stop=stop_after_attempt(policy.attempts),
            wait=wait_exponential(policy.first_wait, max=policy.longest_wait) + wait_random(0, policy.jitter),
            sleep=sleep,
            reraise=True,
        )


def _sorted_out(answers: Iterable[Profile | NotFound | str]) -> Answers:
    found: list[Profile] = []
    not_found: list[str] = []
    unresolved: list[str] = []
    for answer in answers:
        if isinstance(answer, Profile):
            found.append(answer)
        elif isinstance(answer, NotFound):
            not_found.append(answer.user_id)
        else:
            unresolved.append(answer)
    return Answers(tuple(found), tuple(not_found), tuple(unresolved))


def _batches(user_ids: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(user_ids)
    while batch := list(islice(remaining, size)):
        yield batch
