"""The two CSV files that stand beside an audience: its members, and the entries that became none.

Both are UTF-8 without a byte order mark, lines end with LF, and come in pieces of about a megabyte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from activity_platform.audience.rejects import Reject, shown

MEMBERS_HEADER = "Line UserID"
REJECTS_HEADER = "line,value,reason"

_ROWS_A_PIECE = 30_000

# OWASP, "CSV Injection": a spreadsheet takes a cell that begins with one of these for a formula. The others
# that it names, tab and line ends, are escaped by `shown`.
_FORMULA_STARTS = tuple("=+-@＝＋－＠")
_NEEDS_QUOTES = re.compile(r'[,;"]')  # the semicolon is what a European Excel splits at


def members_csv(ids: Iterable[str]) -> Iterator[bytes]:
    """The multicast's file: a header, then one id a line.

    `ids` must ascend, each greater than the one before; `ValueError` otherwise.
    """
    yield f"{MEMBERS_HEADER}\n".encode()
    last = ""
    rest = iter(ids)
    while piece := list(islice(rest, _ROWS_A_PIECE)):
        if any(a >= b for a, b in zip(chain([last], piece), piece, strict=False)):
            raise ValueError("the members of a result file must be distinct and in ascending order")
        last = piece[-1]
        yield ("\n".join(piece) + "\n").encode()


def rejects_csv(rejects: Iterable[Reject]) -> Iterator[bytes]:
    """Header `line,value,reason`, then a row for each reject; `line` is empty where it isn't known."""
    yield f"{REJECTS_HEADER}\n".encode()
    rest = iter(rejects)
    while piece := list(islice(rest, _ROWS_A_PIECE)):
        yield "".join(map(_reject_row, piece)).encode()


def _reject_row(reject: Reject) -> str:
    line = "" if reject.line is None else reject.line
    return f"{line},{_harmless(shown(reject.value))},{reject.reason}\n"


def _harmless(value: str) -> str:
    text = f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text
