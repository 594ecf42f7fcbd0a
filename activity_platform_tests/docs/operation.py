"""What docs/schedules.md and docs/operations.md list, from the definitions and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dagster as dg
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from activity_platform.definitions import build_defs
from activity_platform.health import LIMITS, MEASURES, PREFIX
from activity_platform.ingest.metrics import Metrics
from activity_platform.settings import Settings
from activity_platform_tests.docs.markdown import table


def definitions() -> dg.RepositoryDefinition:
    """All that Dagster loads. Nothing is connected to."""
    settings = Settings(database_url="postgresql://nowhere/", redis_url="redis://nowhere", s3_bucket="none")
    return build_defs(settings).get_repository_def()


def starters() -> str:
    """Every schedule and sensor: when it looks, what it starts."""
    repository = definitions()
    rows = [
        (one.name, f"`{one.cron_schedule}`", [one.job_name], one.description or "")
        for one in repository.schedule_defs
    ] + [
        (
            one.name,
            f"each {one.minimum_interval_seconds} s",
            [target.job_name for target in one.targets],
            one.description or "",
        )
        for one in repository.sensor_defs
    ]
    return table(
        ("Name", "Looks", "Starts", ""),
        [
            (f"[{name}](#{name})", when, _listed(sorted(jobs)), about.partition(" See docs/")[0])
            for name, when, jobs, about in sorted(rows)
        ],
    )


def limits() -> str:
    """How far each number of health may go."""
    return table(
        ("Check", "Holds while", "Severity"),
        [
            (
                f"[{limit.name}](#{limit.name})",
                f"`{limit.measure}` is at most {_amounts(limit.most, limit.by_label)}"
                + (f" and at least {limit.least:g}" if limit.least else ""),
                "critical" if limit.severe else "warning",
            )
            for limit in LIMITS
        ],
    )


def metrics() -> str:
    """What /metrics serves."""
    counted = [
        (f"`{family.name}`", _listed(sorted(_labels(family.samples))), family.documentation)
        for family in text_string_to_metric_families(_exposition())
    ]
    measured = [
        (f"`{PREFIX}{name}`", f"`{label}`" if label else "", about)
        for name, (about, label) in MEASURES.items()
    ]
    return table(("Name", "Labels", ""), counted + measured)


def _exposition() -> str:
    metrics = Metrics()
    metrics.answered("/", 503, 0.0, "database_away")
    return metrics.exposition().decode()


def _labels(samples: Iterable[Sample]) -> set[str]:
    return {label for sample in samples for label in sample.labels} - {"le"}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _amounts(most: float, by_label: Mapping[str, float]) -> str:
    others = [f"{amount:,.0f} for `{of}`" for of, amount in by_label.items()]
    usual = f"{most:g}" if most < 1 else f"{most:,.0f}"
    return ", ".join([usual, *others])
