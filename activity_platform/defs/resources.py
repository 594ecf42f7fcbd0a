"""What the ops, assets and sensors of all domains are given."""

from typing import TypeAlias

import dagster as dg

from activity_platform.settings import Settings

#: The parameter `settings: SettingsResource` of an asset, op, sensor or schedule.
SettingsResource: TypeAlias = dg.ResourceParam[Settings]


def resources(settings: Settings) -> dict[str, object]:
    """By name. Settings hold secrets; Dagster keeps them in memory and shows none of them."""
    return {"settings": settings}
