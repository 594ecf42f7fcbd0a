"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    RED = "red"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found and, unless that is fine, how to cure it."""

    status: Status
    check: str
    what: str
    cure: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(Status.OK, check, what)


def warn(check: str, what: str, cure: str) -> Finding:
    return Finding(Status.WARN, check, what, cure)


def red(check: str, what: str, cure: str) -> Finding:
    return Finding(Status.RED, check, what, cure)
