"""The pins among the constraints on standard input that another Python than this one would install.

    python pins.py 3.13.5 <constraints.txt

pip fetches wheels for another Python but judges conditions such as `python_full_version < '3.12'` by its own.
"""

from __future__ import annotations

import sys

from packaging.requirements import Requirement


def main(version: str) -> None:
    target = {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}
    for line in sys.stdin.read().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(target):
                print(f"{pin.name}{pin.specifier}")  # noqa: T201


main(sys.argv[1])
