"""Events posted over HTTP become edges, by the schedule's run in the daemon.

They are posted when the platform starts and looked at after the other tests: the schedule's minute goes by
meanwhile.
"""

from __future__ import annotations

from typing import Any

import httpx
import psycopg

from activity_platform.ingest.auth import development_token
from activity_platform.local.programs import Programs
from activity_platform.settings import Settings
from activity_platform_tests.acceptance.conftest import ANN, until

NEXT_MINUTE_SECONDS = 150  # the schedule's minute, the start of a run, on a machine that is busy with tests

MATERIALIZATIONS = """
{ assetOrError(assetKey: {path: ["interaction_edges"]}) { ... on Asset {
    assetMaterializations(limit: 100) {
      runOrError { ... on Run { status tags { key value } } }
      metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } }
    } } } }
"""


def test_events_posted_over_http_are_read_back_as_edges(platform: Programs, posted: list[Any]) -> None:
    settings = Settings.load(platform.environment)
    headers = {"Authorization": f"Bearer {development_token(settings, ANN)}"}
    with httpx.Client(base_url=platform.api_url, headers=headers) as client:

        def edges() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.get("/api/v1/activity/edges").json()["edges"]
            return found

        found = until(edges, NEXT_MINUTE_SECONDS)

    assert [
        (edge["edge_type"], edge["target_id"], edge["weight"], edge["event_count"]) for edge in found
    ] == [
        ("attended", "e1", 6.0, 2),
        ("saved", "e1", 3.0, 1),
    ]
    with psycopg.connect(settings.database_url) as connection:
        rows = connection.execute("SELECT count(*) FROM activity_events WHERE user_id = %s", [ANN])
        assert rows.fetchone() == (len(posted),)


def test_the_materialization_shows_what_the_run_folded(platform: Programs) -> None:
    def folded() -> dict[str, Any] | None:
        answer = httpx.post(f"{platform.ui_url}/graphql", json={"query": MATERIALIZATIONS}).json()
        for materialization in answer["data"]["assetOrError"]["assetMaterializations"]:
            numbers = {
                entry["label"]: entry.get("intValue", entry.get("floatValue"))
                for entry in materialization["metadataEntries"]
            }
            tags = {tag["key"]: tag["value"] for tag in materialization["runOrError"]["tags"]}
            if numbers["events_folded"] == 3:
                return numbers | tags
        return None

    numbers = until(folded, NEXT_MINUTE_SECONDS)
    assert numbers["edges_touched"] == 2
    assert numbers["lag_seconds"] >= 0
    assert numbers["dagster/schedule_name"] == "interaction_edges_schedule"
    assert numbers["job_class"] == "fold"
