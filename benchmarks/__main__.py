"""`python -m benchmarks [SUITE…]`: measures the suites and prints one JSON line a comparison.

The first line tells of the machine. Progress, and a table at each suite's end, go to standard error. A suite
that fails doesn't keep the others from being measured. The exit status is 1 when one failed or missed a
ratio, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import benchmarks
from benchmarks.harness import Options, say
from benchmarks.machine import machine
from benchmarks.tables import show

NOT_SUITES = {"harness", "machine", "report", "tables"}


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
    _print({"machine": machine(), "rounds": options.rounds, "scale": options.scale})
    names = suites() if "all" in chosen.suites else chosen.suites
    well = [_measured(name, options) for name in names]
    return 0 if all(well) else 1


def _measured(name: str, options: Options) -> bool:
    """Measures one suite and prints what it found; False when it failed or missed a ratio."""
    found, well, started = [], True, time.monotonic()
    try:
        for comparison in importlib.import_module(f"benchmarks.{name}").run(options):
            _print(comparison.as_json())
            found.append(comparison.as_json())
            well = well and comparison.all_met
    except Exception:
        traceback.print_exc()
        well = False
    show(found)
    say(f"{name}: {time.monotonic() - started:.0f} s")
    return well


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is stopped
    sys.exit(main(sys.argv[1:]))
