"""The bytes of the two files that stand beside an audience."""

from __future__ import annotations

import csv
import io

import pytest

from activity_platform.audience.member_csv import members_csv, rejects_csv
from activity_platform.audience.member_file import parse_member_file
from activity_platform.audience.rejects import Reject

A, B, C = ("U" + letter * 32 for letter in "abc")


def test_the_members_file_holds_a_header_and_one_id_a_line() -> None:
    assert b"".join(members_csv([A, B, C])) == f"Line UserID\n{A}\n{B}\n{C}\n".encode()
    assert b"".join(members_csv([])) == b"Line UserID\n"


def test_a_members_file_of_many_pieces_is_read_back_as_it_was_written() -> None:
    members = [f"U{number:032x}" for number in range(100_000)]
    pieces = list(members_csv(iter(members)))
    assert len(pieces) > 2
    assert list(parse_member_file(b"".join(pieces)).ids) == members


@pytest.mark.parametrize("ids", [[B, A], [A, A]])
def test_members_out_of_order_are_refused(ids: list[str]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        list(members_csv(ids))


def test_order_is_checked_across_pieces() -> None:
    members = [f"U{number:032x}" for number in range(30_000)]
    with pytest.raises(ValueError, match="ascending"):
        list(members_csv([*members, members[-1]]))


def test_the_rejects_file_names_line_value_and_reason() -> None:
    rejects = [
        Reject(2, "a,b", "malformed"),
        Reject(3, 'say "hi"', "malformed"),
        Reject(7, A, "unreachable"),
        Reject(None, B, "unresolved"),
    ]
    assert b"".join(rejects_csv(rejects)).decode() == (
        'line,value,reason\n2,"a,b",malformed\n3,"say ""hi""",malformed\n'
        f"7,{A},unreachable\n,{B},unresolved\n"
    )
    assert b"".join(rejects_csv([])) == b"line,value,reason\n"


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "＝1", '=HYPERLINK("http://x";1)'])
def test_no_value_is_a_formula(value: str) -> None:
    text = b"".join(rejects_csv([Reject(1, value, "malformed")])).decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[1:] == [["1", f"'{value}", "malformed"]]


def test_no_value_can_begin_another_cell_or_row() -> None:
    text = b"".join(
        rejects_csv([Reject(1, "a;=1+1", "malformed"), Reject(2, "\t=1\r\n=1\ud800", "malformed")])
    ).decode()
    assert text == 'line,value,reason\n1,"a;=1+1",malformed\n2,\\u0009=1\\u000d\\u000a=1\\ud800,malformed\n'
