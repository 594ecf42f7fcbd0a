"""Works through the audience queues in this process, message after message, until they are empty."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from activity_platform.audience import endings, process
from activity_platform.audience.lock import AudienceBusy
from activity_platform.audience.messages import Command
from activity_platform.audience.order import Heads, due, read_heads
from activity_platform.audience.services import MessageResult, Services

#: How often the queues are looked at while every message in them waits for its next attempt.
LOOK_SECONDS = 1.0


def process_queues(
    services: Services, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[MessageResult]:
    """Works on what is due, audience by audience in the order of their messages, and yields a result for each
    attempt; waits for the next attempts of those that failed. Ends when the queues are empty.

    Raises `TransientFailure` when PostgreSQL or Redis is away; nothing is lost then.
    """
    while not (heads := read_heads(services.queues)).empty:
        worked = False
        for result in _work_off(services, heads):
            worked = True
            yield result
        if not worked:
            sleep(LOOK_SECONDS)


def run_message(services: Services, queue: str, entry_id: str, *, run_id: str | None = None) -> MessageResult:
    """One attempt at one message, with all its steps. Raises `AudienceBusy` while another worker is at it."""
    ref = process.load(services, queue, entry_id, run_id=run_id)
    if isinstance(ref, MessageResult):
        return ref
    try:
        for step in process.STEPS[Command(ref.command)]:
            step(services, ref)
        return process.publish(services, ref)
    except Exception as error:
        return endings.fail_step(services, ref, error)


def _work_off(services: Services, heads: Heads) -> Iterator[MessageResult]:
    for entry in heads.undecodable:
        yield run_message(services, entry.queue, entry.entry_id)
    with services.connect() as connection:
        candidates = due(
            connection, heads.candidates, retry_seconds=services.retry_seconds, now=services.clock()
        )
    for one in candidates:
        with suppress(AudienceBusy):
            yield run_message(services, one.entry.queue, one.entry.entry_id)
