"""The JSON lines as tables: in the terminal, and in Markdown.

A `base` is the same work on less data. Such comparisons say what a unit costs on less and on more, and stand
in a table of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import written

UNSEEN_WIDTH = 160  # of a log, which tells no width

Line = Mapping[str, Any]
Row = tuple[str, ...]

SPEED_COLUMNS = ("Path", "Case", "Unit", "Figure", "Beside", "Ratio", "Wanted")
GROWTH_COLUMNS = ("Path", "On less", "Cost", "On more", "Cost", "Times as fast", "Wanted")


def show(lines: Iterable[Line]) -> None:
    """Both tables, on standard error."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else UNSEEN_WIDTH)
    lines = list(lines)
    for columns, rows in ((SPEED_COLUMNS, speed_rows(lines)), (GROWTH_COLUMNS, growth_rows(lines))):
        table = Table(*columns)
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            console.print(table)


def speed_rows(lines: Iterable[Line]) -> Iterator[Row]:
    """A row for each peer and limit; an aim, which the figure has by itself, stands in a row before them."""
    for line in lines:
        start = (line["suite"], line["case"], line["unit"], _numbers(line["figure"]))
        others = [beside for beside in line["beside"] if beside["role"] != "base"]
        if (aim := line["figure"].get("aim")) is not None or not line["beside"]:
            sign = "≤" if line["less_is_better"] else "≥"
            yield (*start, "", "", "" if aim is None else f"{sign} {written(aim)}{_missed(line['figure'])}")
        for beside in others:
            yield (
                *start,
                f"{beside['role']}: {_numbers(beside)}",
                written(beside["ratio"]),
                _wanted(beside),
            )


def growth_rows(lines: Iterable[Line]) -> Iterator[Row]:
    """A row for each base, with what a unit costs on its data and on the figure's."""
    for line in lines:
        figure = line["figure"]
        for base in line["beside"]:
            if base["role"] == "base":
                yield (
                    line["suite"],
                    base["name"],
                    _cost(line, base),
                    figure["name"],
                    _cost(line, figure),
                    written(base["ratio"]),
                    _wanted(base),
                )


def markdown(columns: Row, rows: Iterable[Row]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |\n" for line in lines)


def _numbers(variant: Line) -> str:
    """Name, median and, of several samples, the spread."""
    median = f"{variant['name']} {written(variant['median'])}"
    if variant["n"] == 1:
        return f"{median} (n = 1)"
    return f"{median} ({written(variant['least'])}–{written(variant['most'])}, n = {variant['n']})"


def _cost(line: Line, variant: Line) -> str:
    """What a unit costs: of `rows/s`, the µs per row; of a time, the time."""
    if line["less_is_better"]:
        return f"{written(variant['median'])} {line['unit']}"
    unit = line["unit"].removesuffix("/s").removesuffix("s")
    return f"{written(1e6 / variant['median'])} µs per {unit}"


def _wanted(beside: Line) -> str:
    return f"≥ {beside['at_least']:.2g}{_missed(beside)}" if "at_least" in beside else ""


def _missed(judged: Line) -> str:
    return "" if judged["met"] else ", missed"
