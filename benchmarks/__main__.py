"""`python -m benchmarks [SUITE…]`: measures the suites and prints one JSON line a comparison.

Progress goes to standard error. The exit status is 1 when a suite's target is missed, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import benchmarks
from benchmarks.harness import Options, print_line

NOT_SUITES = {"__main__", "harness"}


def suites() -> list[str]:
    """The names of all suites: the public modules of this package with a function `run`."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return [name for name in names if name not in NOT_SUITES and not name.startswith("_")]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", default=["all"], help=", ".join(["all", *suites()])
    )
    parser.add_argument("--rounds", type=int, default=Options.rounds, help="rounds of each comparison")
    parser.add_argument("--scale", type=float, default=Options.scale, help="factor on the sizes")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.suites) - {"all", *suites()}:
        parser.error(f"no suite named {', '.join(sorted(unknown))}: choose from {', '.join(suites())}")
    options = Options(rounds=chosen.rounds, scale=chosen.scale)
    all_met = True
    for name in suites() if "all" in chosen.suites else chosen.suites:
        for comparison in importlib.import_module(f"benchmarks.{name}").run(options):
            print_line(comparison)
            all_met = all_met and comparison.all_met
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
