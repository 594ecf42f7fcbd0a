"""A member file or a CSV without the lines that name a user."""

from __future__ import annotations

import gzip
import re
import zlib

from activity_platform.audience.member_ids import MEMBER_ID, is_member_id
from activity_platform.audience.upload_text import MOST_INFLATED_BYTES

_GZIP = b"\x1f\x8b"
#: Every encoding in which a file can name the id; in all others that are read, ASCII stands for itself.
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


def without_user(data: bytes, user_id: str) -> bytes | None:
    """The file without the physical lines that name the user, else to the byte as it was; None if none does.

    Of a line that names others, too, the id alone is taken. Capital letters make no other user: a file with
    these was read as malformed. Gzip stays gzip. Only well-formed LINE ids come from files.
    """
    if not is_member_id(user_id):
        return None
    if data.startswith(_GZIP):
        text = _inflated(data)
        rest = without_user(text, user_id) if text and not text.startswith(_GZIP) else None
        return None if rest is None else gzip.compress(rest, mtime=0)
    searched, wanted = data.lower(), user_id.lower()
    if wanted.encode() in searched:
        return _without(data.decode("latin-1"), user_id).encode("latin-1")
    for encoding in _WIDE:
        # One byte off, the other byte order looks the same.
        if wanted.encode(encoding) in searched and (rest := _transcoded(data, encoding, user_id)) != data:
            return rest
    return None


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        return inflater.decompress(data, MOST_INFLATED_BYTES)
    except zlib.error:
        return b""


def _transcoded(data: bytes, encoding: str, user_id: str) -> bytes:
    width = 4 if "32" in encoding else 2
    end = len(data) // width * width
    try:
        text = data[:end].decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        return data
    return _without(text, user_id).encode(encoding, "surrogatepass") + data[end:]


def _without(text: str, user_id: str) -> str:
    kept: list[str] = []
    start = 0
    for found in re.finditer(user_id, text, re.IGNORECASE | re.ASCII):
        if found.start() < start:  # in a line that is gone already
            continue
        line, end = _line_around(text, found.start())
        if _names_others(text[line:end], user_id):
            line, end = found.span()
        kept.append(text[start:line])
        start = end
    return "".join([*kept, text[start:]])


def _line_around(text: str, position: int) -> tuple[int, int]:
    """Where the physical line begins, and where the next one does."""
    start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    ends = [at for at in (text.find("\n", position), text.find("\r", position)) if at >= 0]
    if not ends:
        return start, len(text)
    end = min(ends) + 1
    return start, end + (text[end - 1 : end + 1] == "\r\n")


def _names_others(line: str, user_id: str) -> bool:
    return any(one != user_id for one in MEMBER_ID.findall(line))
