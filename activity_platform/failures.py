"""The kinds of failure that decide what happens next. A gateway raises them, the entry points act on them.

- `UsageError`: the caller asked for something senseless or left something out (exit status 2).
- `PermanentFailure`: trying again changes nothing.
- `TransientFailure`: an outside system is away, busy or slow; the same call may succeed later.

A message of any of them is one line that says what is wrong and what to do. It holds no secret and no
personal data, so it may be logged, shown in the UI and stored.
"""


class PlatformError(Exception):
    """A failure whose message is meant for people: one line, no traceback."""


class UsageError(PlatformError):
    """Wrong use: an argument or a setting that can't work."""


class PermanentFailure(PlatformError):
    """Trying again changes nothing."""


class TransientFailure(PlatformError):
    """An outside system is away, busy or slow; the same call may succeed later."""
