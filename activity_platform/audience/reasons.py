"""Why a command failed, and whether trying again can help: the one place that decides it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import psycopg

from activity_platform.audience.messages import BadPayload
from activity_platform.audience.upload_text import FileRefused
from activity_platform.failures import PlatformError
from activity_platform.gateways import line_api, object_store


class Reason(StrEnum):
    """What `audience_import.reason` and a dead letter's `reason` say."""

    BAD_PAYLOAD = "bad_payload"
    UNKNOWN_AUDIENCE = "unknown_audience"
    UNKNOWN_OA = "unknown_oa"
    FILE_NOT_FOUND = "file_not_found"
    FILE_TOO_LARGE = "file_too_large"
    UNSUPPORTED_FORMAT = "unsupported_format"
    EMPTY_FILE = "empty_file"
    NO_KNOWN_MEMBER = "no_known_member"
    NO_CHANNEL_TOKEN = "no_channel_token"  # noqa: S105
    NOT_AUTHORIZED = "not_authorized"
    LINE_UNAVAILABLE = "line_unavailable"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    UNRESOLVED_PROFILES = "unresolved_profiles"
    AUDIENCE_DELETED = "audience_deleted"
    INTERNAL_ERROR = "internal_error"


#: Trying again changes nothing. Everything else is tried again until the attempts are used up: the CMS may
#: push a message before it commits, and a lapsed token or an outage should not cost an import.
PERMANENT = frozenset(
    {
        Reason.BAD_PAYLOAD,
        Reason.FILE_TOO_LARGE,
        Reason.UNSUPPORTED_FORMAT,
        Reason.EMPTY_FILE,
        Reason.NO_KNOWN_MEMBER,
        Reason.NO_CHANNEL_TOKEN,
    }
)


class CommandFailed(PlatformError):
    """The command can't be carried out now, for a reason that people are told."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Failure:
    """What is recorded of a failed attempt. `error` is one line without secrets or personal data."""

    reason: Reason
    error: str

    @property
    def is_permanent(self) -> bool:
        return self.reason in PERMANENT

    def __str__(self) -> str:
        return f"{self.reason}: {self.error}"

    @classmethod
    def parse(cls, text: str) -> Failure:
        """The failure whose `str` is `text`."""
        reason, _, error = text.partition(": ")
        return cls(Reason(reason), error)


_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (object_store.ObjectMissing, Reason.FILE_NOT_FOUND),
    (object_store.ObjectTooLarge, Reason.FILE_TOO_LARGE),
    (object_store.StorageUnavailable, Reason.STORAGE_UNAVAILABLE),
    (line_api.Unauthorized, Reason.NOT_AUTHORIZED),
    (line_api.MonthlyLimit, Reason.LINE_UNAVAILABLE),
    (line_api.NoAnswer, Reason.LINE_UNAVAILABLE),
)


def failure_of(error: Exception) -> Failure:
    """What an exception means for the message that was worked on."""
    if isinstance(error, CommandFailed | FileRefused | BadPayload):
        return Failure(Reason(error.reason), str(error))
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Failure(reason, str(error))
    return Failure(Reason.INTERNAL_ERROR, _safe_text(error))


def _safe_text(error: Exception) -> str:
    if isinstance(error, PlatformError):
        return str(error)
    if isinstance(error, psycopg.Error) and error.sqlstate:
        # The server's own text may quote a row.
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__
