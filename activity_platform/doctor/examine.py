"""Runs the examinations side by side, each within its time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from activity_platform.doctor import clocks, dagster_instance, line, objects, postgres, redis
from activity_platform.doctor.finding import Finding, red, warn
from activity_platform.failures import TransientFailure, UsageError
from activity_platform.settings import DOMAINS, Need, Settings

#: A system that is asked a handful of things and has said nothing for so long is as good as away.
TIMEOUT_SECONDS = 20.0
REPORT = "this is not foreseen: look into that system's log, and report it"


@dataclass(frozen=True)
class Examination:
    """Looks at one system, which some domains stand on. `needs`: what must be set for it."""

    name: str
    look: Callable[[Settings], Iterable[Finding]]
    needs: tuple[Need, ...]
    domains: tuple[str, ...] = DOMAINS


def examine(
    settings: Settings,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Finding]:
    """The findings on everything that the chosen domains need, system by system. Never raises.

    `clock` is this host's, which is compared with those of PostgreSQL and Redis.
    """
    examinations = (
        Examination("postgresql", postgres.look, (Need.DATABASE,)),
        Examination("redis", redis.look, (Need.REDIS,), ("audience", "last_activity")),
        Examination("s3", objects.look, (Need.OBJECTS,), ("audience",)),
        Examination("line", line.look, (Need.DATABASE,), ("audience",)),
        Examination("dagster", dagster_instance.look, ()),
        Examination("clocks", lambda settings: clocks.look(settings, clock), (Need.DATABASE,)),
    )
    wanted = [one for one in examinations if not set(one.domains).isdisjoint(settings.domains)]
    started = [_start(one, settings) for one in wanted]
    deadline = time.monotonic() + timeout_seconds
    for examination, findings in zip(wanted, started, strict=True):
        yield from _collect(examination, findings, deadline)


def _start(examination: Examination, settings: Settings) -> queue.SimpleQueue[Finding | None]:
    """The findings as they come; None ends them."""
    findings: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            settings.check(examination.needs)
            for finding in examination.look(settings):
                findings.put(finding)
        except UsageError as error:
            what, _, cure = str(error).partition(": ")
            findings.put(red(examination.name, what, cure))
        except TransientFailure as error:
            findings.put(warn(examination.name, f"not looked at: {error}", "cure that first"))
        except Exception as error:  # whatever it is, the other lines are worth having
            findings.put(red(examination.name, f"the look failed: {_safe_text(error)}", REPORT))
        findings.put(None)

    # A daemon thread: one that hangs must not keep the process from ending.
    threading.Thread(target=work, name=examination.name, daemon=True).start()
    return findings


def _safe_text(error: Exception) -> str:
    # Other libraries' texts may quote an address with its password.
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return said or type(error).__name__


def _collect(
    examination: Examination, findings: queue.SimpleQueue[Finding | None], deadline: float
) -> Iterator[Finding]:
    while True:
        try:
            finding = findings.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            yield red(
                examination.name,
                "no answer in time",
                "see whether the server is overloaded or a firewall drops what is sent to it",
            )
            return
        if finding is None:
            return
        yield finding
