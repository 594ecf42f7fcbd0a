"""How a message ends when its command is not carried out: tried again later, buried, or skipped."""

from __future__ import annotations

import traceback

import psycopg

from activity_platform.audience import attempts, imports, membership
from activity_platform.audience.imports import Work
from activity_platform.audience.lock import audience_lock
from activity_platform.audience.reasons import Failure, Reason, failure_of
from activity_platform.audience.services import ImportRef, MessageResult, Services
from activity_platform.gateways.queue import Burial


def fail(services: Services, queue: str, entry_id: str, message_id: str, error: Exception) -> MessageResult:
    """Records a failed attempt. If it was the last, or another can't help, the membership is what it was
    before the command, and the message becomes a dead letter.

    Raises `error` itself when the message is done nevertheless: then only the clean-up failed. The caller
    must not hold the audience's lock.
    """
    failure = failure_of(error)
    if failure.reason is Reason.INTERNAL_ERROR:
        # Where it happened, without the error's own text: that may quote a row.
        services.log.error("%s:\n%s", failure, "".join(traceback.format_tb(error.__traceback__)))
    with services.connect() as connection:
        if attempts.is_processed(connection, queue, message_id):
            raise error
        known = attempts.find_attempts(connection, [(queue, message_id)]).get((queue, message_id))
        number = known.attempts if known else 1
        final = failure.is_permanent or services.is_last(number)
        _record(services, connection, queue, message_id, failure, final=final)
    if final:
        _bury(services, queue, entry_id, failure, number)
    return MessageResult(
        queue=queue,
        entry_id=entry_id,
        status="failed" if final else "waiting",
        message_id=message_id,
        reason=failure.reason,
        error=failure.error,
        attempts=number,
    )


def fail_step(services: Services, ref: ImportRef, error: Exception) -> MessageResult:
    """`fail` for a step behind the first."""
    with services.connect() as connection:
        message_id = imports.find_message_id(connection, ref.import_id)
    return fail(services, ref.queue, ref.entry_id, message_id, error)


def skip(services: Services, connection: psycopg.Connection, work: Work) -> None:
    """Ends a command whose audience is deleted as a recorded no-op. The caller holds the audience's lock."""
    membership.undo_plan(connection, work, services.cache)
    with connection.transaction():
        imports.record_success(
            connection,
            work,
            status="skipped",
            reason=Reason.AUDIENCE_DELETED,
            stats={},
            now=services.clock(),
        )


def undo_abandoned(services: Services, connection: psycopg.Connection, work: Work) -> None:
    """Undoes what another command of the audience left half done: its entry vanished from the queue before
    it could be resumed. The caller holds the audience's lock."""
    for abandoned in imports.find_abandoned(connection, work):
        membership.undo_plan(connection, abandoned, services.cache)
        failure = Failure(Reason.INTERNAL_ERROR, "the message vanished while the command was under way")
        imports.record_failure(connection, abandoned.import_id, failure, final=True, now=services.clock())


def _record(
    services: Services,
    connection: psycopg.Connection,
    queue: str,
    message_id: str,
    failure: Failure,
    *,
    final: bool,
) -> None:
    # What is no message has no row; one under its id is another message's.
    is_message = failure.reason is not Reason.BAD_PAYLOAD
    work = imports.find_work_of(connection, queue, message_id) if is_message else None
    if work is not None and final:
        with audience_lock(connection, work.audience_id):
            membership.undo_plan(connection, work, services.cache)
    now = services.clock()
    with connection.transaction():
        if work is not None:
            imports.record_failure(connection, work.import_id, failure, final=final, now=now)
        attempts.end_attempt(connection, queue, message_id, failure, now=now)


def _bury(services: Services, queue: str, entry_id: str, failure: Failure, number: int) -> None:
    entry = services.queues.get(queue, entry_id)
    if entry is not None:
        burial = Burial(entry, failure.reason, failure.error, number)
        services.queues.bury([burial], now=services.clock())
