"""Lines that name a user leave a file; every other byte stays."""

from __future__ import annotations

import gzip

import pytest

from activity_platform.audience.erasure_text import without_user
from activity_platform.audience.member_csv import members_csv
from activity_platform_tests.simulated_line import user_id, user_ids

GONE, ANN, BOB = user_id(0xABC), user_id(1), user_id(2)


def test_a_result_is_the_result_of_the_others() -> None:
    ids = user_ids(0xAC0)
    data = b"".join(members_csv(ids))
    assert without_user(data, GONE) == b"".join(members_csv(one for one in ids if one != GONE))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp874", "utf-16", "utf-16-be", "utf-32"])
def test_lines_leave_files_of_any_kind(end: str, encoding: str) -> None:
    def file(*lines: str) -> bytes:
        return end.join(["Line UserID;ชื่อ", *lines]).encode(encoding)

    with_user = file(f"{ANN};แอน", f'"{GONE}";คน', f"{GONE.upper()};x", f"{BOB};บ๊อบ", GONE)
    assert without_user(with_user, GONE) == file(f"{ANN};แอน", f"{BOB};บ๊อบ", "")
    assert without_user(file(ANN), GONE) is None


def test_gzip_stays_gzip() -> None:
    rest = without_user(gzip.compress(f"{ANN}\n{GONE}\n".encode()), GONE)
    assert rest is not None
    assert gzip.decompress(rest) == f"{ANN}\n".encode()
    assert without_user(gzip.compress(ANN.encode()), GONE) is None
    assert without_user(gzip.compress(GONE.encode())[:-20], GONE) in (b"", None, gzip.compress(b"", mtime=0))


def test_a_line_that_names_others_loses_the_id_alone() -> None:
    assert without_user(f"{ANN},{GONE},{BOB}\n".encode(), GONE) == f"{ANN},,{BOB}\n".encode()


def test_bytes_that_are_no_text_stay() -> None:
    assert without_user(b"\xff\xfe\xfd\n" + GONE.encode() + b"\r\n\x80", GONE) == b"\xff\xfe\xfd\n\x80"


def test_what_is_no_line_id_comes_from_no_file() -> None:
    assert without_user(b"ann\nbob\n", "ann") is None
