"""What every suite shares: rounds that take turns, medians, ratios, and one JSON line a comparison.

A suite is a module `benchmarks/<suite>.py` with one function:

    def run(options: Options) -> Iterator[Comparison]

It yields each comparison as soon as it is measured, usually through `compare`. `python -m benchmarks SUITE…`
finds the module by its name, prints what it yields, and ends with status 1 if a ratio is missed.

Speeds of one machine say little about another's. What a suite promises is therefore a ratio of two variants
that were measured in turns, in one run, on the same machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from activity_platform.local.services import Stack

#: On ten times the data a unit may cost up to twice as much: indexes are deeper and caches smaller then.
FLAT = 0.5

Role = Literal["figure", "peer", "limit", "base"]


@dataclass(frozen=True)
class Options:
    """How much to measure. `scale` multiplies the sizes that a suite works on; 1 is the full form."""

    rounds: int = 3
    scale: float = 1.0

    def size(self, full: int) -> int:
        """`full` scaled, at least 1."""
        return max(1, round(full * self.scale))


@dataclass(frozen=True)
class Beside:
    """A variant that the figure is measured beside; it should be `at_least` times as fast, if that is given.

    `peer`: what people would use instead; `limit`: what the machine, or a part of the work alone, comes to at
    best; `base`: the same work on less data.
    """

    name: str
    role: Role
    at_least: float | None = None


def peer(name: str, at_least: float | None = None) -> Beside:
    return Beside(name, "peer", at_least)


def limit(name: str, at_least: float | None = None) -> Beside:
    return Beside(name, "limit", at_least)


def base(name: str, at_least: float | None = None) -> Beside:
    return Beside(name, "base", at_least)


@dataclass(frozen=True)
class Comparison:
    """What one comparison measured: `samples`, in `unit`, of the `figure` and of each variant `beside` it.

    Samples are rates unless `less_is_better` (times, bytes). `aim` is what the figure itself should come to
    on two cores; it is shown and not judged, since another machine's cores are not these.
    """

    suite: str
    case: str
    unit: str
    figure: str
    samples: Mapping[str, Sequence[float]]
    beside: Sequence[Beside] = ()
    aim: float | None = None
    less_is_better: bool = False

    def ratio(self, beside: Beside) -> float:
        """How many times as fast (or as small) as that variant the figure is, by the medians."""
        figure, other = self._median(self.figure), self._median(beside.name)
        return other / figure if self.less_is_better else figure / other

    def met(self, beside: Beside) -> bool:
        return beside.at_least is None or self.ratio(beside) >= beside.at_least

    @property
    def all_met(self) -> bool:
        return all(self.met(beside) for beside in self.beside)

    @property
    def aim_met(self) -> bool:
        if self.aim is None:
            return True
        median = self._median(self.figure)
        return median <= self.aim if self.less_is_better else median >= self.aim

    def as_json(self) -> dict[str, Any]:
        aim = {} if self.aim is None else {"aim": self.aim, "met": self.aim_met}
        return {
            "suite": self.suite,
            "case": self.case,
            "unit": self.unit,
            "less_is_better": self.less_is_better,
            "figure": self._numbers(self.figure) | aim,
            "beside": [self._beside_as_json(beside) for beside in self.beside],
        }

    def _beside_as_json(self, beside: Beside) -> dict[str, Any]:
        wanted = {} if beside.at_least is None else {"at_least": beside.at_least, "met": self.met(beside)}
        ratio = {"ratio": _rounded(self.ratio(beside))}
        return {"role": beside.role} | self._numbers(beside.name) | ratio | wanted

    def _numbers(self, variant: str) -> dict[str, Any]:
        samples = self.samples[variant]
        return {
            "name": variant,
            "median": _rounded(statistics.median(samples)),
            "least": _rounded(min(samples)),
            "most": _rounded(max(samples)),
            "n": len(samples),
        }

    def _median(self, variant: str) -> float:
        return statistics.median(self.samples[variant])


def compare(
    suite: str,
    case: str,
    unit: str,
    variants: Mapping[str, Callable[[], float]],
    options: Options,
    beside: Sequence[Beside],
    *,
    aim: float | None = None,
    less_is_better: bool = False,
) -> Comparison:
    """Runs every variant once a round, each round starting with the next one. The first one is the figure; a
    variant returns its sample.

    Taking turns spreads what else the machine does over all variants, and a changing order keeps one from
    always running on what another left behind (caches, dirty pages, a checkpoint).
    """
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            sample = variants[name]()
            samples[name].append(sample)
            say(f"{suite}: {case}: round {number + 1}: {name} {written(sample)} {unit}")
    return Comparison(suite, case, unit, names[0], samples, beside, aim, less_is_better)


@contextmanager
def stack() -> Iterator[Stack]:
    """An embedded stack of the suite's own, with PostgreSQL's default durability. The variables that the AWS
    client reads by itself are set to it."""
    with (
        tempfile.TemporaryDirectory(prefix="activity-platform-bench-") as directory,
        Stack(Path(directory)) as running,
    ):
        os.environ.update({name: one for name, one in running.environment.items() if name.startswith("AWS_")})
        yield running


def say(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr, flush=True)


def written(number: float) -> str:
    """The number with at least three digits, grouped."""
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2 if abs(number) >= 1 else 3
    return f"{number:,.{digits}f}"


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")
