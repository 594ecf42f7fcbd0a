"""What an uploaded file is: text in an encoding that ASCII is a part of, made so, or refused by name."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from typing import Literal

from activity_platform.failures import PermanentFailure

# Five times 1.5 million ids, LINE's limit for one audience: room for the other columns of an export.
MOST_INFLATED_BYTES = 256 * 1024 * 1024

_SAMPLE_BYTES = 1024
_TRANSCODED_AT_ONCE = 1024 * 1024
_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"

_BINARY_FORMATS = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel workbook (xls) or another Office document",
    b"PK\x05\x06": "an empty ZIP archive",
    _GZIP: "a gzip file inside a gzip file",
    b"%PDF-": "a PDF document",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"PAR1": "a Parquet file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3\x00": "an SQLite database",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"BZh91AY&SY": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"{\\rtf": "a rich text document",
}
_MARKUP_FORMATS = {
    # Many "Export to Excel" buttons write an HTML table and name it .xls.
    re.compile(
        rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|\?xml|table)\b", re.IGNORECASE
    ): "an HTML or XML page",
    re.compile(rb'(?:\xef\xbb\xbf)?\s*[\[{]\s*["{]'): "a JSON document",
}
_BYTE_ORDER_MARKS = {  # the longer first: UTF-32 LE begins as UTF-16 LE does
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CONTROLS = bytes(set(range(0x20)) - set(b"\t\n\v\f\r\x1a"))  # 1A ends old DOS text


class FileRefused(PermanentFailure):
    """The file can't be read as a list of ids; `reason` is what the import's row says."""

    def __init__(self, reason: Literal["unsupported_format", "file_too_large"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


def text_of(data: bytes, *, most_inflated_bytes: int = MOST_INFLATED_BYTES) -> bytes:
    """The file's text: UTF-16 and UTF-32 as UTF-8, anything else as it came, its byte order mark included.

    A gzip file is inflated first. Raises `FileRefused`: a binary file, a markup file, a damaged or too large
    gzip file.
    """
    if data.startswith(_GZIP):
        data = _inflated(data, most_inflated_bytes)
    _refuse_known_formats(data)
    encoding = _wide_encoding(data)
    text = _transcoded(data, encoding) if encoding else data
    if _is_binary(text[:_SAMPLE_BYTES]):
        raise _unsupported("a binary file")
    return text


def _inflated(data: bytes, most: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (OSError, EOFError, zlib.error):
        raise FileRefused(
            "unsupported_format", "The gzip file is damaged or incomplete: upload it again"
        ) from None
    if len(text) > most:
        raise FileRefused(
            "file_too_large", f"The gzip file holds more than {most:,} bytes: split it into smaller files"
        )
    return text


def _refuse_known_formats(data: bytes) -> None:
    if data.startswith(_ZIP):
        workbook = b"xl/workbook" in data  # names of packed files stand in the clear
        raise _unsupported("an Excel workbook (xlsx)" if workbook else "a ZIP archive or an Office document")
    for magic, name in _BINARY_FORMATS.items():
        # The Parquet mark is plain letters, so the one at the end must be there too.
        if data.startswith(magic) and (magic != b"PAR1" or data.endswith(magic)):
            raise _unsupported(name)
    for pattern, name in _MARKUP_FORMATS.items():
        if pattern.match(data):
            raise _unsupported(name)


def _wide_encoding(data: bytes) -> str | None:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return encoding
    # Without a mark UTF-16 is told by its NULs: ASCII has one in each pair of bytes, always on one side.
    sample = data[:_SAMPLE_BYTES]
    first, second = sample[::2].count(0), sample[1::2].count(0)
    if first + second < len(sample) / 10 or not sample:
        return None
    if second > 9 * first:
        return "utf-16-le"
    return "utf-16-be" if first > 9 * second else None


def _transcoded(data: bytes, encoding: str) -> bytes:
    # In pieces: as one text, a file with one emoji would take four bytes a character.
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    text = bytearray()
    for start in range(0, len(data), _TRANSCODED_AT_ONCE):
        text += decoder.decode(data[start : start + _TRANSCODED_AT_ONCE]).encode()
    text += decoder.decode(b"", final=True).encode()
    return bytes(text)


def _is_binary(sample: bytes) -> bool:
    if b"\0" in sample:
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        # Text of another code page has no control characters; of compressed data one byte in ten is one.
        return len(sample) - len(sample.translate(None, _CONTROLS)) > len(sample) / 50
    return False


def _unsupported(name: str) -> FileRefused:
    return FileRefused(
        "unsupported_format",
        f"The file is {name}, not a list of LINE user ids: save it as CSV (UTF-8) and upload it again",
    )
