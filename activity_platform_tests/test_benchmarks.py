"""The benchmarks' own arithmetic, tables and page; and that each suite runs."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks import report
from benchmarks.__main__ import main, suites
from benchmarks.harness import Comparison, Options, base, compare, limit, peer
from benchmarks.tables import growth_rows, speed_rows

NEEDS = {"drain": "celery", "ingest": "fastapi"}

PAGE = """before
<!-- begin machine -->
old
<!-- end machine -->
<!-- begin speeds -->
<!-- end speeds -->
<!-- begin growth -->
<!-- end growth -->
after
"""
MACHINE = {
    "processor": "A processor",
    "cores": 2,
    "memory_gb": 8,
    "system": "Linux 6",
    "python": "3.11",
    "commit": "abc",
    "measured_at": "2026-11-30",
    "load": 0.1,
}


def rates(**more: Any) -> Comparison:
    samples = {"ours": [90.0, 100.0, 130.0], "theirs": [50.0, 40.0, 60.0], "on less": [200.0, 200.0, 190.0]}
    return Comparison("fold", "a case", "events/s", "ours", samples, **more)


def test_a_ratio_is_that_of_the_medians() -> None:
    assert rates().ratio(peer("theirs")) == 2.0


def test_of_times_the_ratio_says_how_many_times_as_fast_the_figure_is() -> None:
    assert rates(less_is_better=True).ratio(peer("theirs")) == 0.5


def test_a_comparison_misses_when_one_of_its_ratios_does() -> None:
    assert rates(beside=[peer("theirs", 2.0)]).all_met
    assert not rates(beside=[peer("theirs", 2.0), limit("on less", 0.6)]).all_met


def test_an_aim_is_told_and_not_judged() -> None:
    comparison = rates(aim=101)
    assert comparison.all_met
    assert comparison.as_json()["figure"]["met"] is False


def test_variants_take_turns_and_the_first_one_is_the_figure() -> None:
    order: list[str] = []

    def variant(name: str) -> float:
        order.append(name)
        return len(order)

    variants = {name: lambda name=name: variant(name) for name in "abc"}
    found = compare("fold", "a case", "events/s", variants, Options(rounds=2), [peer("b")])
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert found.figure == "a"
    assert found.samples == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}


def test_a_missed_ratio_is_marked_in_its_row() -> None:
    line = rates(beside=[peer("theirs", 2.0), limit("on less", 0.6)], aim=50).as_json()
    assert list(speed_rows([line])) == [
        ("fold", "a case", "events/s", "ours 100 (90.0–130, n = 3)", "", "", "≥ 50.0"),
        (
            *("fold", "a case", "events/s", "ours 100 (90.0–130, n = 3)"),
            *("peer: theirs 50.0 (40.0–60.0, n = 3)", "2.00", "≥ 2"),
        ),
        (
            *("fold", "a case", "events/s", "ours 100 (90.0–130, n = 3)"),
            *("limit: on less 200 (190–200, n = 3)", "0.500", "≥ 0.6, missed"),
        ),
    ]


def test_growth_is_told_as_what_a_unit_costs() -> None:
    line = rates(beside=[base("on less", 0.4)]).as_json()
    assert list(speed_rows([line])) == []
    assert list(growth_rows([line])) == [
        ("fold", "on less", "5,000 µs per event", "ours", "10,000 µs per event", "0.500", "≥ 0.4")
    ]


def test_the_report_fills_the_page_with_the_last_result_of_each_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text(PAGE)
    older = Comparison("fold", "a case", "events/s", "ours", {"ours": [1.0]}, aim=1)
    lines = [
        {"machine": MACHINE, "rounds": 3, "scale": 0.5},
        older.as_json(),
        rates(beside=[peer("theirs")]).as_json(),
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(report, "PAGE", page)
    assert report.main([str(results)]) == 0
    text = page.read_text()
    assert text.startswith(
        "before\n<!-- begin machine -->\nA processor, 2 cores, 8 GB, Linux 6, Python 3.11;"
    )
    assert " 3 rounds, at 0.5 of the full sizes.\n" in text
    assert text.count("| fold |") == 1
    assert "| fold | a case | events/s | ours 100 (90.0–130, n = 3) | peer: theirs" in text
    assert text.endswith("<!-- end growth -->\nafter\n")


def test_the_report_refuses_a_page_without_its_markers() -> None:
    with pytest.raises(ValueError, match="<!-- begin machine -->"):
        report.filled("no markers", {"machine": ""})


def test_the_page_shows_every_suite() -> None:
    page = report.PAGE.read_text()
    assert [name for name in suites() if f"\n| {name} | " not in page] == []


@pytest.mark.heavy
@pytest.mark.parametrize("suite", suites())
def test_each_suite_runs_on_little_data(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    if suite in NEEDS and importlib.util.find_spec(NEEDS[suite]) is None:
        pytest.skip("the extra `bench` is not installed")
    with patch.dict(os.environ):  # a suite sets what the AWS client reads
        main([suite, "--rounds", "1", "--scale", "0.01"])
    printed = capsys.readouterr()
    machine, *lines = [json.loads(line) for line in printed.out.splitlines()]
    assert "Traceback" not in printed.err
    assert machine["scale"] == 0.01
    assert lines
    assert {line["suite"] for line in lines} == {suite}
