"""The rows and cells of a delimited text, whatever program wrote it.

Lines end with LF, CRLF or CR, cells with a comma, a semicolon or a tab. A cell is trimmed of blanks,
invisible characters and quotes. Quotes keep text together, never ids: a quoted cell in which an id stands
between line ends or delimiters began with a stray quote, so nobody is lost to a quote that isn't closed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import cast

from activity_platform.audience.member_ids import is_member_id

# What has neither width nor ink, most of which `str.strip` leaves, with the quote and NUL. The last one is a
# lone byte A0 as `surrogateescape` decodes it: a no-break space in every Windows code page.
_OUTER = (
    "".join(map(chr, (*range(0x21), 0x22, *range(0x7F, 0xA1), 0xAD, 0x034F, 0x061C, 0x1680, 0x180E)))
    + "".join(map(chr, (*range(0x2000, 0x2010), *range(0x2028, 0x2030), *range(0x205F, 0x2070))))
    + "\u3000\ufeff\udca0"
)

_DELIMITER = re.compile(r"[,;\t]")
_BREAK = re.compile(r"[,;\t\r\n]")
_LINE_END = r"(?:\r\n?|\n)"
_LEADING = "(?:\ufeff| )*+"  # before an opening quote
_CELL = rf'(?:{_LEADING}"(?:[^"]++|"")*+"[^,;\t\r\n]*+|[^,;\t\r\n]*+)'
_CELLS = re.compile(rf"(?:\A|[,;\t])({_CELL})")
_RECORD = re.compile(rf"{_CELL}(?:[,;\t]{_CELL})*+{_LINE_END}?".encode())
_LINE = re.compile(rf"[^\r\n]*+{_LINE_END}?".encode())

_ID_DIGITS = re.compile(rb"U([0-9a-f]{32})")
_MOST_RUN_ROWS = 8192
_MOST_RUN_COLUMNS = 100

# A quote that isn't closed within this is stray. It also bounds what is read a second time because of one.
_MOST_QUOTED_BYTES = 64 * 1024


class MemberRows:
    """Reads a text once, row by row, or run by run where rows are plain.

    `line` is the physical line, from 1, on which the next row begins.
    """

    def __init__(self, text: bytes) -> None:
        self.line = 1
        self._text = text
        self._position = 0
        self._quotes_stray_until = 0
        self._no_run_until = 0

    @property
    def exhausted(self) -> bool:
        return self._position >= len(self._text)

    def next_row(self) -> list[str]:
        """The cells of the next row, trimmed. A row of several lines comes from line breaks in quotes."""
        line = cast("re.Match[bytes]", _LINE.match(self._text, self._position))
        row = line[0]
        cells = self._quoted_row(line.end()) if b'"' in row else None
        if cells is None:
            self.line += 1
            self._position = line.end()
            cells = _DELIMITER.split(_decoded(row))
        return [cell.strip(_OUTER) for cell in cells]

    def next_run(self, column: int) -> list[bytes]:
        """The ids' hexadecimal digits in the plain rows from here on, one a row; empty if there are none.

        A plain row holds one id, alone in its cell of that column (from 0), and no quotes but those around
        whole cells of one line: `next_row` would give that id, too. Most files are little else, and this is
        several times as fast.
        """
        if column > _MOST_RUN_COLUMNS or self._position < max(self._quotes_stray_until, self._no_run_until):
            return []
        run = _plain_rows(column).match(self._text, self._position)
        if run is None:
            return []
        digits = _ID_DIGITS.findall(self._text, *run.span())
        rows = _line_ends(run[0])
        if len(digits) != rows:  # some row holds a second id
            self._no_run_until = run.end()
            return []
        self.line += rows
        self._position = run.end()
        return digits

    def _quoted_row(self, line_end: int) -> list[str] | None:
        """The cells if the quotes from here on are meant as such, else None."""
        if self._position < self._quotes_stray_until:
            return None
        window = self._position + _MOST_QUOTED_BYTES
        record = cast("re.Match[bytes]", _RECORD.match(self._text, self._position, window))
        cells = _CELLS.findall(_decoded(record[0]))
        cut = record.end() < line_end or record.end() == window
        if cut or any(map(_hides_id, cells)):
            self._quotes_stray_until = record.end()
            return None
        self.line += _line_ends(record[0])
        self._position = record.end()
        return [cell.replace('""', '"') for cell in cells]


@lru_cache(maxsize=8)
def _plain_rows(column: int) -> re.Pattern[bytes]:
    cell = r'(?:"[^"\r\n]*+"|[^",;\t\r\n]*+)'
    member = r' *+(?:"U[0-9a-f]{32}"|U[0-9a-f]{32}) *+'
    row = rf"(?:{cell}[,;\t]){{{column}}}{member}(?:[,;\t]{cell})*+{_LINE_END}"
    return re.compile(rf"(?:{row}){{1,{_MOST_RUN_ROWS}}}+".encode())


def _hides_id(cell: str) -> bool:
    if not _BREAK.search(cell) or is_member_id(cell.strip(_OUTER)):
        return False
    return any(is_member_id(piece.strip(_OUTER)) for piece in _BREAK.split(cell))


def _decoded(row: bytes) -> str:
    return row.decode("utf-8", "surrogateescape")


def _line_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
