"""One command on an audience, in steps:

    load               counts the attempt, finds audience and OA, opens the import's row in the history
    read_file          reads the uploaded file
    fetch_profiles     asks LINE for the users it names, creates and refreshes them
    change_membership  plans, applies, writes the members' file, finishes
    publish            takes the message off its queue and sends what it fired

A step opens what it needs and hands on keys; the counts stand in `audience_import.stats`. Each may run twice.
Once a plan is stored, a further attempt goes straight to it. When a step fails, `endings` decides what
becomes of the message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from activity_platform.audience import attempts, endings, imports, membership, result_files, users
from activity_platform.audience.imports import Work
from activity_platform.audience.interfaces import LineOa
from activity_platform.audience.lock import AudienceBusy, audience_lock
from activity_platform.audience.member_csv import members_csv, rejects_csv
from activity_platform.audience.member_file import MemberFile
from activity_platform.audience.member_ids import MemberIds
from activity_platform.audience.messages import AudienceMessage, Command, decode
from activity_platform.audience.profiles import Answers, FetchCounts
from activity_platform.audience.pulse import Pulse
from activity_platform.audience.reasons import CommandFailed, Reason
from activity_platform.audience.services import ImportRef, MessageResult, Services
from activity_platform.gateways import line_api, postgres
from activity_platform.gateways.queue import Entry

FILE_STATS = ("total", "valid", "invalid", "duplicates")

# By the primary key; another OA's or organization's audience is as good as none.
_FIND_AUDIENCE = """
SELECT deleted_at IS NOT NULL FROM audience WHERE id = %s AND line_oa_id = %s AND organization_id = %s
"""


def load(
    services: Services, queue: str, entry_id: str, *, run_id: str | None = None
) -> ImportRef | MessageResult:
    """The command in an entry, ready for its steps, or what became of a message that needs none.

    Raises `AudienceBusy`, with no attempt counted, while another worker is at its audience.
    """
    entry = services.queues.get(queue, entry_id)
    if entry is None:
        return MessageResult(queue, entry_id, "gone")
    try:
        return _begin(services, entry, run_id)
    except AudienceBusy:
        raise
    except Exception as error:
        return endings.fail(services, queue, entry_id, entry.message_id, error)


def read_file(services: Services, ref: ImportRef) -> None:
    """Reads the uploaded file and counts what is in it."""
    with _step(services, ref, "read file") as (connection, work, _):
        if work.has_plan or work.source_path is None:
            return
        file = services.files.read(work.source_path)
        counts = {name: getattr(file, name) for name in FILE_STATS}
        imports.add_stats(connection, work.import_id, counts)
        if work.command is Command.UPDATE and not file.valid:
            _write_rejects(services, connection, ref, work, file, _Asked())
            raise CommandFailed(
                Reason.EMPTY_FILE, "the file holds no well-formed LINE user id, so nobody was removed"
            )


def fetch_profiles(services: Services, ref: ImportRef) -> None:
    """Asks LINE for the file's users that aren't known well enough, and writes the file of the rejected.

    Ids without an answer make an attempt fail; the last one goes on with what is known.
    """
    with _step(services, ref, "fetch profiles") as (connection, work, pulse):
        if work.has_plan or work.source_path is None:
            return
        file = services.files.again(work.source_path)
        asked = _ask(services, connection, work, file, pulse) if work.command.asks_line else _Asked()
        _write_rejects(services, connection, ref, work, file, asked)
        counts = {"unreachable": len(asked.unreachable), "unresolved": len(asked.unresolved)}
        imports.add_stats(connection, work.import_id, counts)
        _check_answers(services, work, file, asked)


def change_membership(services: Services, ref: ImportRef) -> None:
    """Makes the membership what the command asks for, and records it."""
    with _step(services, ref, "change membership") as (connection, work, pulse):
        if attempts.is_processed(connection, work.queue, work.message_id):
            return
        oa = _oa(services, connection, work)
        endings.undo_abandoned(services, connection, work)
        if not work.has_plan:
            _plan(services, connection, work)
        stats = imports.read_stats(connection, work.import_id)
        for applied in membership.apply_plan(connection, work, services.cache):
            pulse.at(applied, stats["added"] + stats["removed"])
        path = result_files.result_path(oa.hash, work.audience_id, ref.moment)
        stats["members"] = _write_members(services, connection, work, path)
        _finish(services, connection, work, stats, path)


def publish(services: Services, ref: ImportRef) -> MessageResult:
    """Takes the message off its queue, sends what was fired, and says how the command ended."""
    services.queues.finish(ref.queue, [ref.entry_id])
    with postgres.outages_named(), services.connect() as connection:
        services.publish_firings(connection, now=services.clock())
        return result_of(connection, ref)


def result_of(connection: psycopg.Connection, ref: ImportRef) -> MessageResult:
    """What the history says of a command that came through."""
    record = imports.find_import(connection, ref.import_id)
    work = imports.find_work(connection, ref.import_id)
    return MessageResult(
        queue=ref.queue,
        entry_id=ref.entry_id,
        status=record.status,
        message_id=record.message_id,
        audience_id=record.audience_id,
        command=record.command,
        reason=record.reason,
        attempts=work.attempt,
        result_path=record.result_path,
        rejects_path=record.rejects_path,
        stats=record.stats,
    )


Step = Callable[[Services, ImportRef], None]

#: What each command does between `load` and `publish`.
STEPS: Mapping[Command, tuple[Step, ...]] = {
    Command.CREATE: (read_file, fetch_profiles, change_membership),
    Command.UPDATE: (read_file, fetch_profiles, change_membership),
    Command.MOOKEPT_ADD: (read_file, fetch_profiles, change_membership),
    Command.MOOKEPT_REMOVE: (read_file, fetch_profiles, change_membership),
    Command.DELETE: (change_membership,),
}


@dataclass(frozen=True)
class _Asked:
    """The ids that LINE has no profile of, and those that it gave no answer about, and why."""

    unreachable: set[str] = field(default_factory=set)
    unresolved: set[str] = field(default_factory=set)
    failure: str | None = None


def _begin(services: Services, entry: Entry, run_id: str | None) -> ImportRef | MessageResult:
    message = decode(entry)
    with (
        postgres.outages_named(),
        services.connect() as connection,
        audience_lock(connection, message.audience_id),
    ):
        if attempts.is_processed(connection, entry.queue, entry.message_id):
            services.queues.finish(entry.queue, [entry.entry_id])
            return MessageResult(
                entry.queue, entry.entry_id, "repeated", entry.message_id, message.audience_id
            )
        _count_attempt(services, connection, entry)
        deleted = _is_deleted(connection, message)
        import_id = imports.start_import(connection, entry, message, run_id, now=services.clock())
        ref = ImportRef(
            import_id,
            message.command,
            message.audience_id,
            entry.queue,
            entry.entry_id,
            result_files.message_moment(entry),
        )
        work = imports.find_work(connection, import_id)
        if deleted:
            endings.skip(services, connection, work)
            services.queues.finish(entry.queue, [entry.entry_id])
            return result_of(connection, ref)
        _check_oa(services, connection, work)
        return ref


def _count_attempt(services: Services, connection: psycopg.Connection, entry: Entry) -> None:
    key = (entry.queue, entry.message_id)
    now = services.clock()
    known = attempts.find_attempts(connection, [key]).get(key)
    if known is not None and known.is_under_way(now):
        raise AudienceBusy("another worker is at this message just now")
    if known is not None and services.is_last(known.attempts):
        # The last attempt was killed, or couldn't bury the message.
        raise CommandFailed(known.last_failure.reason, known.last_failure.error)
    attempts.start_attempt(connection, *key, now=now)


def _is_deleted(connection: psycopg.Connection, message: AudienceMessage) -> bool:
    key = [message.audience_id, message.line_oa_id, message.organization_id]
    row = connection.execute(_FIND_AUDIENCE, key).fetchone()
    if row is None:
        raise CommandFailed(
            Reason.UNKNOWN_AUDIENCE, "there is no such audience in that OA and organization, or not yet"
        )
    return bool(row[0])


def _check_oa(services: Services, connection: psycopg.Connection, work: Work) -> None:
    oa = _oa(services, connection, work)
    if work.command.asks_line and not work.has_plan and not oa.token.strip():
        raise CommandFailed(
            Reason.NO_CHANNEL_TOKEN, "the OA has no channel access token: add one, then replay the message"
        )


def _oa(services: Services, connection: psycopg.Connection, work: Work) -> LineOa:
    oa = services.find_oa(connection, work.line_oa_id, work.organization_id)
    if oa is None:
        raise CommandFailed(Reason.UNKNOWN_OA, "there is no such OA in that organization, or not yet")
    return oa


@contextmanager
def _step(services: Services, ref: ImportRef, name: str) -> Iterator[tuple[psycopg.Connection, Work, Pulse]]:
    with (
        postgres.outages_named(),
        services.connect() as connection,
        audience_lock(connection, ref.audience_id),
    ):
        work = imports.find_work(connection, ref.import_id)
        services.log.info("import %s, attempt %s: %s", work.import_id, work.attempt, name)
        with Pulse(services.connect, work, name, services.log) as pulse:
            yield connection, work, pulse


def _ask(
    services: Services, connection: psycopg.Connection, work: Work, file: MemberFile, pulse: Pulse
) -> _Asked:
    oa = _oa(services, connection, work)
    users.stage_ids(connection, file.ids)
    try:
        return _ask_stale(services, connection, oa, pulse)
    except line_api.Unauthorized:
        # Tokens are renewed while imports run: once, a newer one is tried.
        renewed = _oa(services, connection, work)
        if renewed.token == oa.token:
            raise
        return _ask_stale(services, connection, renewed, pulse)


def _ask_stale(services: Services, connection: psycopg.Connection, oa: LineOa, pulse: Pulse) -> _Asked:
    stale = users.stale_ids(connection, oa.line_oa_id, services.clock() - services.fresh)
    asked = _Asked()
    done = 0

    def keep(answers: Answers) -> None:
        nonlocal done
        if answers.found:
            services.upsert(connection, oa, answers.found, now=services.clock())
            services.cache.forget([profile.user_id for profile in answers.found])
        asked.unreachable.update(answers.not_found)
        asked.unresolved.update(answers.unresolved)
        done += len(answers)
        pulse.at(done, len(stale))

    counts = services.profiles.fetch(oa, stale, keep) if stale else FetchCounts()
    return replace(asked, failure=counts.failure)


def _check_answers(services: Services, work: Work, file: MemberFile, asked: _Asked) -> None:
    """Raises when the answers aren't enough to go on."""
    if not asked.unresolved:
        return
    silent = len(asked.unresolved) == file.valid
    if not services.is_last(work.attempt) or (silent and work.command is Command.UPDATE):
        raise CommandFailed(
            Reason.LINE_UNAVAILABLE if silent else Reason.UNRESOLVED_PROFILES,
            f"{len(asked.unresolved):,} of {file.valid:,} ids are unresolved; last: {asked.failure}",
        )


def _write_rejects(
    services: Services,
    connection: psycopg.Connection,
    ref: ImportRef,
    work: Work,
    file: MemberFile,
    asked: _Asked,
) -> None:
    path = result_files.rejects_path(_oa(services, connection, work).hash, work.audience_id, ref.moment)
    rejects = heapq.merge(
        file.malformed,
        file.rejects(asked.unreachable, "unreachable") if asked.unreachable else (),
        file.rejects(asked.unresolved, "unresolved") if asked.unresolved else (),
        key=lambda reject: reject.line or 0,
    )
    services.storage.put(path, b"".join(rejects_csv(rejects)), content_type=result_files.CSV)
    imports.note_rejects(connection, work.import_id, path)


def _plan(services: Services, connection: psycopg.Connection, work: Work) -> None:
    named = services.files.again(work.source_path).ids if work.source_path is not None else MemberIds(b"")
    users.stage_ids(connection, named)
    with connection.transaction():
        plan = membership.make_plan(connection, work)
        if work.command is Command.UPDATE and not plan.named:
            raise CommandFailed(
                Reason.NO_KNOWN_MEMBER, "LINE and the table know nobody of the file, so nobody was removed"
            )
        counts = {"added": plan.added, "removed": plan.removed}
        if work.command.asks_line:
            counts["alreadyPresent"] = plan.named - plan.added
        imports.add_stats(connection, work.import_id, counts)


def _write_members(services: Services, connection: psycopg.Connection, work: Work, path: str) -> int:
    members = membership.read_members(connection, work.line_oa_id, work.audience_id)
    data = b"".join(members_csv(members))
    services.storage.put(path, data, content_type=result_files.CSV)
    return data.count(b"\n") - 1


def _finish(
    services: Services, connection: psycopg.Connection, work: Work, stats: Mapping[str, Any], path: str
) -> None:
    partial = bool(stats.get("unresolved"))
    try:
        membership.finish(
            connection,
            work,
            evaluate=services.evaluate,
            info=_info(work.command, stats, path),
            stats={"members": stats["members"]},
            result_path=path,
            status="partial" if partial else "done",
            reason=Reason.UNRESOLVED_PROFILES if partial else None,
            now=services.clock(),
        )
    except membership.AudienceGone:
        endings.skip(services, connection, work)


def _info(command: Command, stats: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What the CMS is told. Only a command whose file names all members speaks of the whole file."""
    return {
        **({name: stats[name] for name in FILE_STATS} if command.replaces else {}),
        "unreachable": stats.get("unreachable", 0),
        "unresolved": stats.get("unresolved", 0),
        "members": stats["members"],
        "added": stats["added"],
        "removed": stats["removed"],
        "filePath": path,
    }
