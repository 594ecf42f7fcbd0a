"""The LINE user ids in an uploaded file: bytes in; ids, counts and malformed entries out.

Which cells count:

- The first row with text is a header if nothing in it is an id or was meant as one.
- Under a header of several columns a row is one entry. Its column is the one named "Line UserID" in any
  spelling, else that of the first id. A row whose id stands elsewhere counts too, unless a broken one stands
  in its column: the other may be someone else's.
- Otherwise each id in a row counts, and beside two or more of them each other cell with text is an entry as
  well: the row is a list.
- A row with text but no id is one malformed entry.
"""

from __future__ import annotations

import re
from array import array
from binascii import unhexlify
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from activity_platform.audience.member_ids import MEMBER_ID, MemberIds
from activity_platform.audience.member_rows import MemberRows
from activity_platform.audience.rejects import MalformedEntries, Reason, Reject
from activity_platform.audience.upload_text import MOST_INFLATED_BYTES, text_of

# What is left of an id with a wrong character or in upper case or without its U, and no word of a header.
_MEANT_AS_ID = re.compile(r"[0-9A-Fa-f]{16}")
_COLUMN_NAME = "lineuserid"
_DELIMITER_HINT = re.compile(r"sep=.?")  # a first line that Excel understands and doesn't show


@dataclass(frozen=True)
class MemberFile:
    """`ids`: distinct, in file order. `lines`: the physical line, from 1, where each first stands."""

    ids: MemberIds
    lines: array[int]
    duplicates: int
    malformed: MalformedEntries

    @property
    def valid(self) -> int:
        return len(self.ids)

    @property
    def invalid(self) -> int:
        return len(self.malformed)

    @property
    def total(self) -> int:
        return self.valid + self.invalid + self.duplicates

    def rejects(self, ids: Collection[str], reason: Reason) -> Iterator[Reject]:
        """A reject for each of the file's ids that is one of `ids` (best a set), in file order."""
        for line, member in zip(self.lines, self.ids, strict=True):
            if member in ids:
                yield Reject(line, member, reason)


def parse_member_file(data: bytes, *, most_inflated_bytes: int = MOST_INFLATED_BYTES) -> MemberFile:
    """The ids in `data`. A file that holds none is no error.

    Raises `FileRefused`, reason `unsupported_format` or `file_too_large`, and nothing else.
    """
    return _Reading(MemberRows(text_of(data, most_inflated_bytes=most_inflated_bytes))).result()


class _Reading:
    def __init__(self, rows: MemberRows) -> None:
        self._rows = rows
        self._one_a_row = False
        self._column: int | None = None
        self._seen: set[bytes] = set()  # the digits of ids: what follows their U
        self._packed = bytearray()
        self._lines = array("I")
        self._duplicates = 0
        self._malformed = MalformedEntries()

    def result(self) -> MemberFile:
        self._read_first_row()
        while not self._rows.exhausted:
            line, run = self._rows.line, self._next_run()
            if run:
                self._take_run(line, run)
            else:
                self._take_row(line, self._rows.next_row())
        return MemberFile(MemberIds(bytes(self._packed)), self._lines, self._duplicates, self._malformed)

    def _read_first_row(self) -> None:
        while not self._rows.exhausted:
            line, cells = self._rows.line, self._rows.next_row()
            if not any(cells) or _DELIMITER_HINT.fullmatch(cells[0]):
                continue
            if any(map(_MEANT_AS_ID.search, cells)):
                self._take_row(line, cells)
            else:
                self._read_header(cells)
            return

    def _read_header(self, cells: list[str]) -> None:
        self._one_a_row = len(list(filter(None, cells))) > 1
        names = ["".join(filter(str.isalnum, cell)).lower() for cell in cells]
        if self._one_a_row and _COLUMN_NAME in names:
            self._column = names.index(_COLUMN_NAME)

    def _next_run(self) -> list[bytes]:
        return [] if self._column is None else self._rows.next_run(self._column)

    def _take_run(self, line: int, run: list[bytes]) -> None:
        if len(set(run)) == len(run) and self._seen.isdisjoint(run):
            self._seen.update(run)
            self._packed += unhexlify(b"".join(run))
            self._lines.extend(range(line, line + len(run)))
        else:
            for at, digits in enumerate(run, line):
                self._take_id(at, digits)

    def _take_row(self, line: int, cells: list[str]) -> None:
        filled = list(filter(None, cells))
        if not filled:
            return
        ids = list(filter(MEMBER_ID.fullmatch, filled))
        if ids and self._column is None:
            self._column = cells.index(ids[0])
        own = cells[self._column] if self._column is not None and self._column < len(cells) else ""
        for entry in self._entries(filled, ids, own):
            if MEMBER_ID.fullmatch(entry):
                self._take_id(line, entry[1:].encode())
            else:
                self._malformed.add(line, entry)

    def _entries(self, filled: list[str], ids: list[str], own: str) -> list[str]:
        """The entries of a row: its cells with text, the ids among them, the cell in the ids' column."""
        if not ids:
            return [next(filter(_MEANT_AS_ID.search, filled), own or filled[0])]
        if self._one_a_row:
            return [own if _MEANT_AS_ID.search(own) else ids[0]]
        return filled if len(ids) > 1 else ids

    def _take_id(self, line: int, digits: bytes) -> None:
        if digits in self._seen:
            self._duplicates += 1
        else:
            self._seen.add(digits)
            self._packed += unhexlify(digits)
            self._lines.append(line)
