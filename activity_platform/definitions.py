"""Dagster's entry: the definitions of the domains that `DOMAINS` names, merged."""

import os

import dagster as dg

from activity_platform.defs import (
    activity,
    alerts,
    audience,
    dead_runs,
    erasure,
    health,
    housekeeping,
    last_activity,
    resources,
    training,
)
from activity_platform.settings import Settings

BY_DOMAIN = {
    "activity": activity.definitions,
    "audience": audience.definitions,
    "last_activity": last_activity.definitions,
}


def build_defs(settings: Settings) -> dg.Definitions:
    """Fresh definitions for those settings. Raises `UsageError` when a domain lacks one that it needs."""
    settings.check(settings.domain_needs())
    return dg.Definitions.merge(
        dg.Definitions(resources=resources.resources(settings), executor=dg.in_process_executor),
        *(BY_DOMAIN[domain]() for domain in settings.domains if domain in BY_DOMAIN),
        *_training(settings),
        erasure.definitions(),
        housekeeping.definitions(settings.domains),
        health.definitions(settings.domains),
        alerts.definitions(),
        dead_runs.definitions(),
    )


def _training(settings: Settings) -> list[dg.Definitions]:
    """The training corpus, where there is a bucket for it."""
    return [training.definitions()] if "activity" in settings.domains and settings.s3_bucket else []


@dg.definitions
def defs() -> dg.Definitions:
    return build_defs(Settings.load(os.environ))
