"""What every suite shares: rounds that take turns, medians, ratios, and one JSON line a comparison.

A suite is a module `benchmarks/<suite>.py` with one function:

    def run(options: Options) -> Iterator[Comparison]

It yields each comparison as soon as it is measured, usually through `compare`. `python -m benchmarks SUITE…`
finds the module by its name, prints what it yields, and ends with status 1 if a target is missed.

Speeds of one machine say little about another's. What a suite promises is therefore a ratio of two variants
that were measured in turns, in one run, on the same machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activity_platform.local.services import Stack


@dataclass(frozen=True)
class Options:
    """How much to measure. `scale` multiplies the sizes that a suite works on; 1 is the full form."""

    rounds: int = 5
    scale: float = 1.0

    def size(self, full: int) -> int:
        """`full` scaled, at least 1."""
        return max(1, round(full * self.scale))


@dataclass(frozen=True)
class Target:
    """The median of `variant` should be at least `at_least` times the median of `baseline`.

    `at_least=None` reports the ratio without judging it.
    """

    variant: str
    baseline: str
    at_least: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What one comparison measured. `samples` are rates (higher is better), a list a variant, in `unit`."""

    suite: str
    case: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    targets: Sequence[Target] = ()

    @property
    def medians(self) -> dict[str, float]:
        return {variant: statistics.median(samples) for variant, samples in self.samples.items()}

    def ratio(self, target: Target) -> float:
        return self.medians[target.variant] / self.medians[target.baseline]

    def met(self, target: Target) -> bool:
        return target.at_least is None or self.ratio(target) >= target.at_least

    @property
    def all_met(self) -> bool:
        return all(self.met(target) for target in self.targets)

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "case": self.case,
            "unit": self.unit,
            "medians": {variant: round(median, 1) for variant, median in self.medians.items()},
            "ratios": [self._ratio_as_json(target) for target in self.targets],
            "samples": {
                variant: [round(sample, 1) for sample in samples] for variant, samples in self.samples.items()
            },
        }

    def _ratio_as_json(self, target: Target) -> dict[str, Any]:
        named = {"of": target.variant, "to": target.baseline, "ratio": round(self.ratio(target), 3)}
        return (
            named
            if target.at_least is None
            else named | {"at_least": target.at_least, "met": self.met(target)}
        )


def compare(
    suite: str,
    case: str,
    unit: str,
    variants: Mapping[str, Callable[[], float]],
    options: Options,
    targets: Sequence[Target] = (),
) -> Comparison:
    """Runs every variant once a round, each round starting with the next one; a variant returns its rate.

    Taking turns spreads what else the machine does over all variants, and a changing order keeps one from
    always running on what another left behind (caches, dirty pages, a checkpoint).
    """
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(variants[name]())
            print(
                f"{suite}: {case}: round {number + 1}: {name} {samples[name][-1]:,.0f} {unit}",
                file=sys.stderr,
            )
    return Comparison(suite, case, unit, samples, targets)


@contextmanager
def stack() -> Iterator[Stack]:
    """An embedded stack of the suite's own, with PostgreSQL's default durability."""
    with (
        tempfile.TemporaryDirectory(prefix="activity-platform-bench-") as directory,
        Stack(Path(directory)) as running,
    ):
        yield running


def print_line(comparison: Comparison) -> None:
    print(json.dumps(comparison.as_json(), ensure_ascii=False), flush=True)
