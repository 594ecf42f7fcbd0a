"""`python -m benchmarks.report RESULTS…`: puts what `python -m benchmarks` printed into docs/performance.md.

Of several results for one case the last counts. The tables replace what stands between their markers,
`<!-- begin NAME -->` and `<!-- end NAME -->`; the rest of the page stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.machine import PROJECT
from benchmarks.tables import GROWTH_COLUMNS, SPEED_COLUMNS, Line, growth_rows, markdown, speed_rows

PAGE = PROJECT / "docs" / "performance.md"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS")
    chosen = parser.parse_args(arguments)
    lines = [json.loads(line) for file in chosen.results for line in file.read_text().splitlines()]
    PAGE.write_text(filled(PAGE.read_text(), parts(lines)))
    return 0


def parts(lines: Iterable[Line]) -> dict[str, str]:
    """The page's generated parts by the names of their markers."""
    lines = list(lines)
    newest = list({(line["suite"], line["case"]): line for line in lines if "suite" in line}.values())
    return {
        "machine": _machine([line for line in lines if "machine" in line]),
        "speeds": markdown(SPEED_COLUMNS, speed_rows(newest)),
        "growth": markdown(GROWTH_COLUMNS, growth_rows(newest)),
    }


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with each part between its markers. Raises `ValueError` when a marker is missing."""
    for name, text in parts.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, found, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"the page has no {begin} … {end}")
        page = f"{before}{begin}\n{text}{end}{after}"
    return page


def _machine(lines: Sequence[Line]) -> str:
    measured, rounds, scale = (lines[-1][name] for name in ("machine", "rounds", "scale"))
    sizes = "" if scale == 1 else f", at {scale:g} of the full sizes"
    return (
        f"{measured['processor']}, {measured['cores']} cores,"
        f" {measured['memory_gb']} GB, {measured['system']}, Python {measured['python']};"
        f" commit {measured['commit']}, {measured['measured_at']}, load {measured['load']} at the start;"
        f" {rounds} rounds{sizes}.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
