"""One account's many imports hold up neither another account's nor the fold."""

from __future__ import annotations

import httpx
import pytest

from activity_platform.ingest.auth import development_token
from activity_platform.local.programs import Programs
from activity_platform.settings import Settings
from activity_platform_tests.acceptance.conftest import until, wait_until_empty
from activity_platform_tests.audience_world import World
from activity_platform_tests.simulated_line import SimulatedLine, user_ids

IMPORTS = 40
IDS_AN_IMPORT = 300
MOST_SECONDS = 60
FOLD_EVERY_SECONDS = 60


@pytest.mark.heavy
@pytest.mark.timeout(1500)
def test_forty_imports_of_one_account_delay_another_and_the_fold_by_at_most_a_minute(
    platform: Programs, world: World
) -> None:
    settings = Settings.load(platform.environment)
    line = SimulatedLine(settings.line_api_base_url)
    ids = user_ids(IMPORTS * IDS_AN_IMPORT + 3)
    few, many = ids[:3], ids[3:]
    line.answer("profile", ids=many, delay_seconds=3)
    other = World(world.connection, world.services, world.store)
    crowd = [world.add_audience() for _ in range(IMPORTS)]
    for number, audience in enumerate(crowd):
        world.create(audience, many[number * IDS_AN_IMPORT :][:IDS_AN_IMPORT])
    until(lambda: under_way(world), 120)

    lone = other.add_audience()
    other.create(lone, few)
    post_event(platform, settings)
    until(lambda: statuses(other, lone) == ["done"], MOST_SECONDS)
    assert len(many) > world.count("line_user") - len(few)  # the crowd is not through
    until(lambda: folded(world), FOLD_EVERY_SECONDS + MOST_SECONDS)
    assert under_way(world) <= 2

    line.reset()
    wait_until_empty(world, 900)
    other.assert_consistent(lone, few)
    for number, audience in enumerate(crowd):
        assert statuses(world, audience) == ["done"]
        world.assert_consistent(audience, many[number * IDS_AN_IMPORT :][:IDS_AN_IMPORT])


def post_event(platform: Programs, settings: Settings) -> None:
    headers = {"Authorization": f"Bearer {development_token(settings, 'passer-by')}"}
    event = {"verb": "save", "object_type": "event", "object_id": "e1"}
    answer = httpx.post(
        f"{platform.api_url}/api/v1/activity/events", json={"events": [event]}, headers=headers
    )
    assert answer.status_code == 202


def folded(world: World) -> bool:
    edges = world.connection.execute("SELECT FROM interaction_edges WHERE actor_id = 'passer-by'")
    return edges.rowcount == 1


def under_way(world: World) -> int:
    """How many imports of the account run."""
    imports = world.connection.execute(
        "SELECT FROM audience_import JOIN audience ON audience.id = audience_id"
        " WHERE line_oa_id = %s AND status = 'running'",
        [world.line_oa_id],
    )
    return imports.rowcount


def statuses(world: World, audience_id: int) -> list[str]:
    return [str(row["status"]) for row in world.imports(audience_id)]
