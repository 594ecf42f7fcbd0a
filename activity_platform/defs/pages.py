"""Where `docs/` explains what Dagster shows: the page of each schedule, sensor and asset check.

The UI shows their descriptions as plain text, and neither metadata nor tags of schedules and sensors. So the
description ends with the place in the repository, such as `docs/operations.md#fold_lag`.
"""

import inspect
from collections.abc import Callable

import dagster as dg

#: A heading for each schedule and sensor, and one for each asset check, under its name.
STARTERS = "docs/schedules.md"
CHECKS = "docs/operations.md"

Check = Callable[..., dg.AssetCheckResult]


def starter(about: str, name: str) -> str:
    """The description of a schedule or sensor of that name."""
    return f"{about} See {STARTERS}#{name}"


def check(about: str, name: str) -> str:
    """The description of an asset check of that name."""
    return f"{about} See {CHECKS}#{name}"


def asset_check(*, asset: dg.AssetsDefinition | dg.AssetKey) -> Callable[[Check], dg.AssetChecksDefinition]:
    """`dg.asset_check`; the description is the function's docstring and its page."""

    def define(function: Check) -> dg.AssetChecksDefinition:
        about = check(inspect.getdoc(function) or "", function.__name__)
        return dg.asset_check(asset=asset, description=about)(function)

    return define
