"""What is read from a member file, whatever wrote it."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activity_platform.audience.member_file import MemberFile, parse_member_file
from activity_platform.audience.member_ids import MemberIds, is_member_id
from activity_platform.audience.member_rows import MemberRows
from activity_platform.audience.rejects import Reject
from activity_platform.audience.upload_text import FileRefused

A, B, C, D, E, F = ("U" + letter * 32 for letter in "abcdef")
UPPER = "U" + "A" * 32
HEADER = "Line UserID"


def parse(text: str) -> MemberFile:
    return parse_member_file(text.encode())


def counts(file: MemberFile) -> tuple[int, int, int, int]:
    """total, valid, invalid, duplicates"""
    return file.total, file.valid, file.invalid, file.duplicates


def malformed(file: MemberFile) -> list[tuple[int | None, str]]:
    return [(reject.line, reject.value) for reject in file.malformed]


# Encodings


@pytest.mark.parametrize("text", [f"{HEADER}\r\n{A}\r\n{B}\r\n", f"{A}\n{B}\n"])
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"), (b"\xef\xbb\xbf", "utf-8"),
        (b"", "utf-16-le"), (b"\xff\xfe", "utf-16-le"), (b"", "utf-16-be"), (b"\xfe\xff", "utf-16-be"),
        (b"\xff\xfe\0\0", "utf-32-le"), (b"\0\0\xfe\xff", "utf-32-be"),
    ],
)  # fmt: skip
def test_every_encoding_gives_the_same_ids_gzipped_or_not(text: str, mark: bytes, encoding: str) -> None:
    data = mark + text.encode(encoding)
    for upload in (data, gzip.compress(data)):
        file = parse_member_file(upload)
        assert list(file.ids) == [A, B]
        assert counts(file) == (2, 2, 0, 0)


def test_utf_16_text_in_another_script_is_read() -> None:
    text = f"รหัสผู้ใช้;ชื่อ\r\n{A};สมชาย 😀\r\n{B};王小明\r\n"
    for encoding in ("utf-16-le", "utf-16-be"):
        assert list(parse_member_file(text.encode(encoding)).ids) == [A, B]


def test_a_character_cut_off_at_the_end_of_utf_16_costs_no_id() -> None:
    assert list(parse_member_file(f"{A}\n{B}\nx".encode("utf-16-le")[:-1]).ids) == [A, B]


@pytest.mark.parametrize("encoding", ["cp874", "latin-1", "shift-jis", "big5"])
def test_a_file_in_another_code_page_gives_its_ids(encoding: str) -> None:
    names = {"cp874": "สมชาย", "latin-1": "José", "shift-jis": "太郎", "big5": "小明"}
    file = parse_member_file(f"{HEADER},name\n{A},{names[encoding]}\n{B},x\n".encode(encoding))
    assert list(file.ids) == [A, B]


def test_a_no_break_space_of_a_windows_code_page_is_trimmed() -> None:
    assert list(parse_member_file(f"{A}\xa0,José\n".encode("latin-1")).ids) == [A]


def test_a_malformed_entry_of_thai_excel_can_be_read_by_the_person_who_wrote_it() -> None:
    file = parse_member_file(f"{A}\nสมชาย\n".encode("cp874"))
    assert malformed(file) == [(2, "สมชาย")]


# Lines


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}\r{A}\r{B}\r{C}",
        f"{A}\r\n{B}\r{C}\n",
        f"\n\r\n  \n{A}\n,,\n\t\n{B}\n\"\"\n;\u200b;\n{C}\n\n",
    ],
)  # fmt: skip
def test_any_line_end_ends_a_row_and_rows_without_text_are_not_counted(text: str) -> None:
    file = parse(text)
    assert list(file.ids) == [A, B, C]
    assert counts(file) == (3, 3, 0, 0)


def test_lines_are_the_physical_lines_of_the_file() -> None:
    file = parse(
        f'\r\n{HEADER},note\r{A},"two\nlines"\n{UPPER},x\n\n{B},"three\r\nmore\rlines"\n{A},\n{C},\nlast'
    )
    assert list(zip(file.lines, file.ids, strict=True)) == [(3, A), (7, B), (11, C)]
    assert malformed(file) == [(5, UPPER), (12, "last")]
    assert counts(file) == (6, 3, 2, 1)


@pytest.mark.parametrize("character", ["\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_what_only_python_takes_for_a_line_end_ends_no_row(character: str) -> None:
    file = parse(f'{A},"one{character}two"\n{B},three{character}four\n')
    assert list(file.ids) == [A, B]
    assert counts(file) == (2, 2, 0, 0)


# Headers


@pytest.mark.parametrize(
    "header", [HEADER, "line_user_id", ' "LINE USERID" ', "\ufeffid", "ชื่อ", "U", '"two\nlines"']
)
def test_a_first_row_without_an_id_is_a_header(header: str) -> None:
    file = parse(f"{header}\n{A}\n")
    assert list(file.ids) == [A]
    assert counts(file) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "broken", [UPPER, "u" + "a" * 32, A[1:], A[:-1], A + "a", A[:9] + "\u200b" + A[9:], A[:9] + "o" + A[10:]]
)
def test_a_first_row_that_was_meant_as_an_id_is_malformed(broken: str) -> None:
    file = parse(f"{broken}\n{A}\n")
    assert list(file.ids) == [A]
    assert counts(file) == (2, 1, 1, 0)


def test_excels_delimiter_hint_is_no_header() -> None:
    file = parse(f"sep=;\r\n{HEADER};Name\r\n{A};x\r\n")
    assert list(file.ids) == [A]
    assert counts(file) == (1, 1, 0, 0)


def test_only_the_first_row_is_a_header() -> None:
    assert malformed(parse(f"Members\n{HEADER}\n{A}\n")) == [(2, HEADER)]


# Ids


def test_case_variants_are_malformed_not_repaired() -> None:
    file = parse(f"{A}\n{UPPER}\nu{'a' * 32}\n")
    assert list(file.ids) == [A]
    assert malformed(file) == [(2, UPPER), (3, "u" + "a" * 32)]


def test_blanks_and_invisible_characters_around_an_id_are_trimmed() -> None:
    around = [
        "\xa0",
        "\u200b",
        " \t",
        "\u200e",
        "\ufeff",
        "\u2060",
        "\u3000",
        "\x85",
        "\u202c",
        "\0",
        "\u2069",
    ]
    filler = f"{F}\n" * 40  # a NUL in the first kilobyte would make a binary file of it
    text = "".join(f"{mark}{A}{mark}{mark}\n{B}{mark}\n" for mark in around)
    file = parse(filler + text)
    assert list(file.ids) == [F, A, B]
    assert file.invalid == 0
    assert all(member.isascii() and len(member) == 33 for member in file.ids)


def test_an_invisible_character_inside_an_id_is_malformed_and_shown() -> None:
    file = parse(f"{A}\nU{'b' * 16}\u200b{'b' * 16}\n")
    assert malformed(file) == [(2, f"U{'b' * 16}\\u200b{'b' * 16}")]


def test_duplicates_are_counted_once_each_and_keep_their_first_line() -> None:
    file = parse(f"{B}\n{A}\n{B}\n{B}\n{UPPER}\n")
    assert list(zip(file.lines, file.ids, strict=True)) == [(1, B), (2, A)]
    assert counts(file) == (5, 2, 1, 2)


# Cells


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_id_is_found_in_any_column_after_any_delimiter(delimiter: str, column: int) -> None:
    def row(cell: str, *others: str) -> str:
        return delimiter.join([*others[:column], cell, *others[column:]])

    file = parse(
        "\r\n".join([row(HEADER, "Name", "Age"), row(A, "สมชาย", ""), row(B, "", "7"), row(UPPER, "x", "")])
    )
    assert list(file.ids) == [A, B]
    assert malformed(file) == [(4, UPPER)]


def test_a_row_whose_id_stands_in_another_column_counts() -> None:
    assert list(parse(f"{HEADER},name\n{A},x\nx,{B}\n").ids) == [A, B]


def test_a_second_id_under_a_header_is_someone_elses() -> None:
    file = parse(f"referrer,line_user_id,by\n{D},{A},{E}\n{E},{UPPER},{F}\n,{B},\n")
    assert list(file.ids) == [A, B]
    assert malformed(file) == [(3, UPPER)]


def test_without_a_header_of_several_columns_a_row_of_ids_is_a_list() -> None:
    for text in (f"{A}, {B};{UPPER},{C},\n{D}\n", f"{HEADER}\n{A},{B},{UPPER},{C}\n{D}"):
        file = parse(text)
        assert list(file.ids) == [A, B, C, D]
        assert counts(file) == (5, 4, 1, 0)


def test_a_long_list_on_one_line_is_read() -> None:
    members = [f"U{number:032x}" for number in range(5000)]
    for text in (",".join(members), '"' + '","'.join(members) + '"', '"' + ",".join(members) + '"\n'):
        file = parse(text)
        assert list(file.ids) == members
        assert counts(file) == (5000, 5000, 0, 0)


def test_a_malformed_row_is_named_by_the_cell_that_was_meant_as_an_id() -> None:
    file = parse(f"name,{HEADER}\nx,{A}\n{UPPER},y\nz,?\nonly\n")
    assert malformed(file) == [(3, UPPER), (4, "?"), (5, "only")]


# Quotes


@pytest.mark.parametrize(
    "text",
    [
        f'"{A}"\n"{B}"\n"{C}"\n',
        f'"{A}","x, ""y"""\n"{B}","{HEADER}"\n"{C}",""',
        f'"{A}\n{B}\n{C}\n',
        f'{A}\n"{B}\n{C}\n',
        f'{A}\n{B}"\n{C}\n',
        f'{A},"not closed\n{B},closed"\n{C}\n',
        f'{A},5" pipe\n{B},"Tom "the" cat"\n{C},"\n',
        f'"{A},{B}",x\n"{C};x"\n',
        f'"{A}\n{B}\n{C}"\n',
        f'x{HEADER}\n"\n{A}\n"\n{B}\n"{C}\n',
    ],
)  # fmt: skip
def test_quotes_keep_no_id_from_being_found(text: str) -> None:
    assert list(parse(text).ids) == [A, B, C]


def test_line_breaks_in_a_quoted_cell_make_no_rows() -> None:
    file = parse(f'{A},"line\n,line;\r\nline"\n"a\rb",{B}\n')
    assert list(file.ids) == [A, B]
    assert counts(file) == (2, 2, 0, 0)


def test_a_quote_is_looked_after_for_64_kilobytes_at_most() -> None:
    file = parse(f'{A}\n"open\n' + "x\n" * 100_000 + f'closed"\n{B}\n')
    assert list(file.ids) == [A, B]
    assert file.invalid == 100_002


# Malformed entries


def test_the_values_of_malformed_entries_are_short_and_harmless() -> None:
    filler = f"{A}\n" * 40
    bad = ["x" * 5000, "a\0b", "t\x01ab", "txt\u202efdp", 'say ""hi"" twice', "é" * 101]
    data = (filler + "\n".join(f'"{value}"' for value in bad)).encode() + b"\n\xed\xa0\xbd\n\xff\xfe"
    values = [reject.value for reject in parse_member_file(data).malformed]
    assert values[:6] == [
        "x" * 100 + "…",
        "a\\u0000b",
        "t\\u0001ab",
        "txt\\u202efdp",
        'say "hi" twice',
        "é" * 100 + "…",
    ]
    assert all(value.isprintable() and len(value) <= 101 for value in values)
    assert len(values) == 8


def test_ids_that_line_does_not_know_are_rejected_with_their_line() -> None:
    file = parse(f"{HEADER}\n{A}\n{B}\n{B}\n{C}\n")
    assert list(file.rejects({C, A, D}, "unreachable")) == [
        Reject(2, A, "unreachable"),
        Reject(5, C, "unreachable"),
    ]


# Files without ids, files that are no text


@pytest.mark.parametrize("text", ["", HEADER, f"{HEADER}\n", "\n \r\n", "\ufeff", "a,b,c\n,,\n"])
def test_a_file_without_ids_is_read_as_none(text: str) -> None:
    file = parse(text)
    assert list(file.ids) == []
    assert counts(file) == (0, 0, 0, 0)


def workbook() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", f"<x>{A}</x>")
    return data.getvalue()


def parquet() -> bytes:
    return pd.DataFrame({"id": [A, B]}).to_parquet()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (workbook(), "an Excel workbook (xlsx)"),
        (gzip.compress(workbook(), mtime=0), "an Excel workbook (xlsx)"),
        (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504), "an old Excel workbook (xls)"),
        (b"PK\x03\x04" + bytes(30), "a ZIP archive"),
        (parquet(), "a Parquet file"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG image"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "a JPEG image"),
        (gzip.compress(gzip.compress(A.encode(), mtime=0), mtime=0), "a gzip file inside a gzip file"),
        (f"<html><table><tr><td>{A}</td>".encode(), "an HTML or XML page"),
        (f'\ufeff<?xml version="1.0"?><a>{A}</a>'.encode(), "an HTML or XML page"),
        (f'["{A}", "{B}"]'.encode(), "a JSON document"),
        (f'[\n {{"id": "{A}"}}]'.encode(), "a JSON document"),
        (A.encode() + b"\0\n", "a binary file"),
        (b"\xff\xfe" + b"\0\0" * 9, "a binary file"),
        (bytes(range(1, 256)) * 4, "a binary file"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_ids_is_refused_by_name(data: bytes, name: str) -> None:
    with pytest.raises(FileRefused, match=re.escape(name)) as refused:
        parse_member_file(data)
    assert refused.value.reason == "unsupported_format"
    assert "save it as CSV (UTF-8)" in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [lambda d: d[:-9], lambda d: d[:20] + b"\xff\xff\xff" + d[23:], lambda d: d[:2], lambda d: d + b"x"],
)
def test_a_damaged_gzip_file_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(FileRefused, match="damaged or incomplete") as refused:
        parse_member_file(damage(gzip.compress(f"{A}\n{B}\n".encode())))
    assert refused.value.reason == "unsupported_format"


def test_gzip_files_one_after_the_other_are_one_file() -> None:
    data = gzip.compress(f"{A}\n".encode()) + gzip.compress(f"{B}\n".encode()) + bytes(512)
    assert list(parse_member_file(data).ids) == [A, B]


def test_a_gzip_file_is_inflated_up_to_a_bound() -> None:
    data = gzip.compress(f"{A}\n".encode() * 1000)
    assert parse_member_file(data, most_inflated_bytes=34_000).duplicates == 999
    with pytest.raises(FileRefused, match="more than 33,999 bytes") as refused:
        parse_member_file(data, most_inflated_bytes=33_999)
    assert refused.value.reason == "file_too_large"


# Properties

ids = st.integers(0, 2**128 - 1).map(lambda number: f"U{number:032x}") | st.sampled_from([A, B])
broken_ids = ids.map(str.upper).filter(lambda text: not is_member_id(text)) | ids.map(lambda text: text[:20])
notes = st.text(st.sampled_from("U5 aé王สก😀=\u2028\u200b'\",;\t\r\n"), max_size=8)
blanks = st.sampled_from(["", "", " ", "\u200b", "\xa0 "])
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


@dataclass(frozen=True)
class Framed:
    data: bytes
    entries: list[tuple[int, str]]


@st.composite
def framed(draw: st.DrawFn) -> Framed:
    """A table of ids and broken ids in one column among notes, as some program may write it."""
    columns = draw(st.integers(1, 3))
    column = draw(st.integers(0, columns - 1))
    delimiter = draw(st.sampled_from(",;\t"))
    quoted = draw(st.booleans())
    end = draw(st.sampled_from([line_ends, st.just("\n"), st.just("\r\n")]))

    def cell(text: str) -> str:
        if quoted or set(text) & set('",;\t\r\n'):
            return '"' + text.replace('"', '""') + '"'
        return text

    text, entries = "", []
    if draw(st.booleans()):
        text += delimiter.join(cell("column") for _ in range(columns)) + draw(end)
    for entry in draw(st.lists(ids | ids | ids | broken_ids | st.just(""), max_size=20)):
        if entry:
            entries.append((1 + len(re.findall("\r\n?|\n", text)), entry))
            cells = [cell(draw(notes)) for _ in range(columns)]
            cells[column] = draw(blanks) + cell(draw(blanks) + entry + draw(blanks)) + draw(blanks)
            row = delimiter.join(cells)
        else:
            row = delimiter * draw(st.integers(0, columns))
        text += row + draw(end)
    text = text.rstrip("\r\n") if draw(st.booleans()) else text
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]))
    data = text.encode(encoding)
    return Framed(gzip.compress(data, 1) if draw(st.booleans()) else data, entries)


@given(framed())
def test_every_framing_gives_the_same_ids_lines_and_counts(framing: Framed) -> None:
    file = parse_member_file(framing.data)
    good = [(line, entry) for line, entry in framing.entries if is_member_id(entry)]
    first = {entry: line for line, entry in reversed(good)}
    assert sorted(zip(file.lines, file.ids, strict=True)) == sorted(
        (line, entry) for entry, line in first.items()
    )
    assert list(file.lines) == sorted(file.lines)
    assert malformed(file) == [entry for entry in framing.entries if entry not in good]
    assert counts(file) == (len(framing.entries), len(first), file.invalid, len(good) - len(first))


fragments = st.sampled_from(
    [
        A,
        B,
        C,
        D,
        UPPER,
        '"',
        '"',
        '""',
        ",",
        ",",
        ";",
        "\t",
        "\n",
        "\n",
        "\r",
        "\r\n",
        " ",
        "\u200b",
        "x",
        "é",
    ]
)
plain_rows = st.sampled_from(
    [f"{A}\n", f"{B}\n", f'"{C}",x\n', f"{D};é\r\n", f'{E},"a;b"\n', f"x,{F}\n", f" {F}\n", f"{A},{B}\n"]
)
soups = st.lists(fragments | plain_rows, max_size=40).map("".join)
starts = st.sampled_from(["", f"{A}\n", f"{HEADER}\n", "a,b\n", f"x,{HEADER}\n", f"x,{A}\n"])


@given(starts, soups)
@example(f"{A}\n", f'"x\n{B}\n{B},{C}\n"\n{D},"a;b"\n')
def test_reading_runs_of_plain_rows_gives_what_reading_row_by_row_gives(start: str, soup: str) -> None:
    quick = parse(start + soup)
    with mock.patch.object(MemberRows, "next_run", return_value=[]):
        slow = parse(start + soup)
    assert quick.ids == slow.ids
    assert quick.lines == slow.lines
    assert counts(quick) == counts(slow)
    assert list(quick.malformed) == list(slow.malformed)


@given(soups)
def test_no_id_is_lost_to_any_arrangement_of_quotes(soup: str) -> None:
    text = f"{A}\n{soup}"
    pieces = [piece.strip(' "\u200b') for piece in re.split("[,;\t\r\n]", text)]
    file = parse(text)
    assert set(file.ids) == set(filter(is_member_id, pieces))
    assert file.valid + file.duplicates == len(list(filter(is_member_id, pieces)))


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b\x08\0", A.encode() + b"\n", b'"']),
)
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    for upload in (start + data, gzip.compress(start + data, 1)):
        try:
            file = parse_member_file(upload)
        except FileRefused:
            continue
        assert all(map(is_member_id, file.ids))
        assert all(reject.value.isprintable() for reject in file.malformed)


@given(st.lists(ids, unique=True, max_size=8), st.slices(8), st.integers(-9, 8))
def test_packed_ids_are_a_sequence_like_a_list(members: list[str], part: slice, index: int) -> None:
    packed = parse("\n".join(members)).ids
    assert list(packed) == members
    assert list(packed[part]) == members[part]
    assert isinstance(packed[part], MemberIds)
    if -len(members) <= index < len(members):
        assert packed[index] == members[index]
    else:
        with pytest.raises(IndexError):
            packed[index]


# Size


def uploads(rows: int) -> Iterator[tuple[str, bytes]]:
    members = [f"U{number:032x}" for number in range(rows)]
    yield "one column", "\n".join([HEADER, *members]).encode()
    yield (
        "two columns",
        "\r\n".join([f"{HEADER};Name", *(f"{member};สมชาย 😀" for member in members)]).encode(),
    )
    yield "utf-16", "\n".join(members).encode("utf-16")
    yield "malformed", "\n".join(member.upper() + "x" for member in members).encode()


PEAK = """
import re, sys
from pathlib import Path
from activity_platform.audience.member_file import parse_member_file
file = parse_member_file(Path(sys.argv[1]).read_bytes())
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(file.total, int(peak[1]) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux' /proc")
@pytest.mark.parametrize(
    ("rows", "most_megabytes"),
    [pytest.param(1_500_000, 600, marks=pytest.mark.heavy), (20_000, 40)],
)
def test_memory_stays_within_bounds(rows: int, most_megabytes: int, tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    for kind, data in uploads(rows):
        path.write_bytes(data)
        # Not ru_maxrss: a child's starts from its parent's.
        output = subprocess.run(
            [sys.executable, "-c", PEAK, path], check=True, capture_output=True, text=True
        ).stdout
        total, peak = output.split()
        assert int(total) == rows, kind
        assert float(peak) < most_megabytes, kind
