"""PostgreSQL stays away until the run that works with it has died. Once it is back, the work goes on."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from activity_platform.gateways.queue import LAST_ACTIVITY, Queues, connect
from activity_platform_tests.chaos.site import Site
from activity_platform_tests.simulated_line import user_id

PATIENCE_SECONDS = 240  # a machine that is busy with tests; a run gives up after some fifty seconds


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_drain_that_died_in_an_outage_is_followed_by_another(tmp_path: Path) -> None:
    with (
        Site(tmp_path, random.Random(1), with_dagster=True, durable=False) as site,
        closing(connect(site.settings.redis_url)) as client,
    ):
        queues = Queues(client)
        add_activity(queues)
        until(lambda: bool(site.working_runs()) and not queues.depth(LAST_ACTIVITY))
        (worker,) = (pid for pid, job in site.working_runs().items() if job == "line_user_last_activity_job")
        with site.without_postgres():
            add_activity(queues)
            until(lambda: not site.has_process(worker))
            time.sleep(15)  # until the code server has seen it, in vain
        until(lambda: not queues.depth(LAST_ACTIVITY))
        assert worker not in site.working_runs()


def add_activity(queues: Queues) -> None:
    payload = {
        "lineUserId": user_id(1),
        "lineOaId": 1,
        "organizationId": 1,
        "activityType": "message",
        "activityStatus": "active",
    }
    queues.publish(LAST_ACTIVITY, json.dumps(payload))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.5)
