"""Carries out a request to forget somebody, whatever its kind. The command line and `erase_job` share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from activity_platform.erasure_requests import Erasure, ErasureRequest, Kind
from activity_platform.settings import Need, Settings


@dataclass(frozen=True)
class Outcome:
    """How far an erasure is: `files_waiting` of the training corpus keep it pending. `uploads_left` are files
    of producers in other buckets, which no erasure touches."""

    erasure: Erasure
    files_waiting: int = 0
    uploads_left: int = 0


def carry_out(
    settings: Settings,
    request: ErasureRequest,
    *,
    older_files: bool = True,
    tell: Callable[[date], object] = lambda _: None,
) -> Outcome:
    """Erases what there is. Without `older_files`, training files of months that the log no longer holds are
    left for later; `tell` hears of each day that was looked into.

    Raises `UsageError` when a setting is missing, `TransientFailure` when something is away or in the way:
    the request stays pending then, and may be carried out again at any time.
    """
    if request.kind is Kind.USER:
        from activity_platform.activity.erasure import erase_user

        user = erase_user(settings, request, older_files=older_files, tell=tell)
        return Outcome(user.erasure, files_waiting=user.files_waiting)
    settings.check([Need.REDIS, Need.OBJECTS])
    if request.kind is Kind.LINE_USER:
        from activity_platform.audience.erasure import erase_line_user

        done = erase_line_user(settings, request)
    else:
        from activity_platform.audience.erasure_oa import erase_oa

        done = erase_oa(settings, request)
    return Outcome(done.erasure, uploads_left=done.uploads_left)
