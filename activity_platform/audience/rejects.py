"""Entries of a member file that became no member, kept so that even millions of them fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Reason = Literal["malformed", "unreachable", "unresolved"]

MAX_VALUE_CHARACTERS = 100  # three ids' worth: enough to find the entry again, whatever stood in the cell


@dataclass(frozen=True)
class Reject:
    """`line`: the physical line of the file from 1, None where it isn't known. `value` is personal data."""

    line: int | None
    value: str
    reason: Reason


class MalformedEntries:
    """The malformed entries of one file in file order: their text in UTF-8 and 12 bytes each."""

    def __init__(self) -> None:
        self._lines = array("I")
        self._ends = array("Q")
        self._values = bytearray()

    def add(self, line: int, value: str) -> None:
        """`value`: any text, bytes that are not UTF-8 decoded by `surrogateescape`. Kept as `shown`."""
        self._values += shown(value).encode()
        self._ends.append(len(self._values))
        self._lines.append(line)

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Reject]:
        start = 0
        for line, end in zip(self._lines, self._ends, strict=True):
            yield Reject(line, self._values[start:end].decode(), "malformed")
            start = end


def shown(value: str) -> str:
    """`value` as a person should see it: at most 100 characters and "…", the unprintable ones escaped.

    The escapes (`\\u200b`) say why an id that looks right is none; no NUL, line break or surrogate is left.
    """
    text = _repaired(value[: MAX_VALUE_CHARACTERS + 1])
    if not text.isprintable():
        text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "…"


def _repaired(value: str) -> str:
    try:
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8")
    except UnicodeEncodeError:
        return value
    except UnicodeDecodeError:
        # What Excel in Thailand writes as "CSV"; text of other code pages comes out wrong, but as text.
        return raw.decode("cp874", "replace")
