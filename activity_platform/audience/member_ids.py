"""LINE user ids: what a well-formed one is, and a sequence of many of them in little memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

# LINE Messaging API, "User ID": U and 32 digits of lower-case hexadecimal.
MEMBER_ID = re.compile(r"U[0-9a-f]{32}")

_ID_BYTES = 16
_ITERATED_AT_ONCE = 4096


def is_member_id(text: str) -> bool:
    """Whether `text` is a well-formed LINE user id, and nothing besides."""
    return MEMBER_ID.fullmatch(text) is not None


@dataclass(frozen=True, repr=False)
class MemberIds(Sequence[str]):
    """Ids in their order, 16 bytes each: 1.5 million take 24 MB, as a list of texts 140 MB.

    An item is made when it is asked for, and a slice is a `MemberIds` again. `in` reads the ids one by one:
    for many look-ups make a set of the part that matters.
    """

    packed: bytes  # the hexadecimal digits of each, as bytes

    def __len__(self) -> int:
        return len(self.packed) // _ID_BYTES

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.packed), _ITERATED_AT_ONCE * _ID_BYTES):
            digits = self.packed[start : start + _ITERATED_AT_ONCE * _ID_BYTES].hex()
            for at in range(0, len(digits), 2 * _ID_BYTES):
                yield "U" + digits[at : at + 2 * _ID_BYTES]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> MemberIds: ...
    def __getitem__(self, index: int | slice) -> str | MemberIds:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return MemberIds(self.packed[start * _ID_BYTES : stop * _ID_BYTES])
            return MemberIds(b"".join(self._item(at) for at in range(start, stop, step)))
        return "U" + self._item(range(len(self))[index]).hex()

    def __repr__(self) -> str:
        return f"MemberIds({len(self)} ids)"

    def _item(self, at: int) -> bytes:
        return self.packed[at * _ID_BYTES : (at + 1) * _ID_BYTES]
