"""The dashboard asks for numbers that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from activity_platform import health
from activity_platform.ingest.metrics import Metrics

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"


def test_every_panel_has_a_title_a_place_of_its_own_and_known_numbers() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    metrics = Metrics()
    metrics.answered("/", 202, 0.1, None)
    metrics.accepted(1)
    served = set(re.findall(r"^(\w+)[{ ]", metrics.exposition().decode(), re.MULTILINE))
    served |= {health.PREFIX + measure for measure in health.MEASURES}
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\bactivity_\w+", target["expr"])
    }
    assert asked <= served
    assert {health.PREFIX + limit.measure for limit in health.LIMITS} - {
        health.PREFIX + health.GROWTH
    } <= asked
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
