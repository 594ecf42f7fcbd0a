"""Reading a member file of LINE's own limit, beside the csv module, pandas, and reading its bytes alone.

Each sample is taken in a process of its own, which also tells the most memory that it held. The peers do what
one would write first: they take the first column, and know neither other columns nor where a bad line stood.
"""

from __future__ import annotations

import csv
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pandas as pd

from activity_platform.audience.member_file import parse_member_file
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer

IDS = 1_500_000
TIMES = 10
SECONDS = 3
MEGABYTES = 600

PARSER, CSV, PANDAS, READ = "parse_member_file", "csv module", "pandas", "reading and decoding"
MEMBER_ID = re.compile(r"U[a-f0-9]{32}")

Reader = Callable[[Path], int]


def run(options: Options) -> Iterator[Comparison]:
    """Ids a second, on more and on less, and the memory at its peak."""
    ids = options.size(IDS)
    fewer = max(1, ids // TIMES)
    with tempfile.TemporaryDirectory(prefix="activity-platform-bench-") as directory:
        large = _File(Path(directory) / "large.csv", ids)
        small = _File(Path(directory) / "small.csv", fewer)
        variants = {PARSER: parse, CSV: read_with_csv, PANDAS: read_with_pandas, READ: read_and_decode}
        yield compare(
            "member_file",
            f"{ids:,} ids",
            "ids/s",
            {name: large.measured(name, reader) for name, reader in variants.items()},
            options,
            [peer(CSV), peer(PANDAS), limit(READ)],
            aim=IDS / SECONDS,
        )
        yield Comparison(
            "member_file",
            f"memory at the peak, {ids:,} ids",
            "MB",
            PARSER,
            dict(large.megabytes),
            [peer(CSV), peer(PANDAS)],
            aim=MEGABYTES,
            less_is_better=True,
        )
        less, more = f"a file of {fewer:,} ids", f"a file of {ids:,} ids"
        yield compare(
            "member_file",
            f"{TIMES} times the ids",
            "ids/s",
            {more: large.measured(PARSER, parse), less: small.measured(PARSER, parse)},
            options,
            [base(less, FLAT)],
        )


class _File:
    """A file of distinct ids, one a line under a header, and what reading it took."""

    def __init__(self, path: Path, ids: int) -> None:
        self._path = path
        self._ids = ids
        self.megabytes: dict[str, list[float]] = {}
        chance = Random(ids)
        with path.open("w") as file:
            file.write("Line UserID\n")
            file.writelines(f"U{chance.randbytes(16).hex()}\n" for _ in range(ids))

    def measured(self, name: str, reader: Reader) -> Callable[[], float]:
        def measure() -> float:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found, seconds, megabytes = process.submit(_measure, reader, self._path).result()
            if found != self._ids:
                raise RuntimeError(f"{name} found {found} of {self._ids} ids")
            self.megabytes.setdefault(name, []).append(megabytes)
            return self._ids / seconds

        return measure


def _measure(reader: Reader, path: Path) -> tuple[int, float, float]:
    started = time.perf_counter()
    found = reader(path)
    seconds = time.perf_counter() - started
    return found, seconds, _most_megabytes()


def _most_megabytes() -> float:
    """The most memory of this process. Linux counts its parent's into `ru_maxrss`, from before the exec."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) / (1 << 10)


def parse(path: Path) -> int:
    return parse_member_file(path.read_bytes()).valid


def read_with_csv(path: Path) -> int:
    ids: list[str] = []
    seen: set[str] = set()
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            value = row[0].strip()
            if MEMBER_ID.fullmatch(value) and value not in seen:
                seen.add(value)
                ids.append(value)
    return len(ids)


def read_with_pandas(path: Path) -> int:
    column = pd.read_csv(path, dtype=str).iloc[:, 0].str.strip()
    return len(column[column.str.fullmatch(MEMBER_ID.pattern)].drop_duplicates())


def read_and_decode(path: Path) -> int:
    return path.read_bytes().decode("utf-8-sig").count("\n") - 1
