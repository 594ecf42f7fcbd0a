"""Every process of the platform is killed under traffic, again and again. Nothing is lost, double or stuck.

`make chaos` runs the storms over the whole platform with three seeds; `make chaos SEED=7` with that one. Here
a short one over the commands stands for them: Dagster's code server and daemon alone take ten seconds to
start, and as long after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from activity_platform_tests.chaos.invariants import COMPARISONS, Evidence, violations
from activity_platform_tests.chaos.storm import Plan, storm

SEEDS = ("1", "2", "3")

SHORT = Plan(
    kills=12,
    seconds=10,
    patience_seconds=60,
    with_dagster=False,
    durable=False,
    users=1_000,
    most_ids=150,
    commands=15,
)
LONG = Plan(
    kills=32,
    seconds=120,
    patience_seconds=240,
    with_dagster=True,
    durable=True,
    users=6_000,
    most_ids=2_000,
    commands=20,
)

#: By the promise that it breaks: changes of one row.
DAMAGE = {
    2: "DELETE FROM activity_events WHERE id = (SELECT max(id) FROM activity_events)",
    3: """UPDATE interaction_edges SET weight = weight + 0.5
          WHERE ctid = (SELECT min(ctid) FROM interaction_edges)""",
    6: "DELETE FROM processed_message WHERE message_id = 'm0'",
    7: """UPDATE line_user SET audience_ids = '{}'
          WHERE id = (SELECT min(id) FROM line_user WHERE audience_ids <> '{}')""",
    8: "DELETE FROM trigger_firing WHERE id = (SELECT max(id) FROM trigger_firing)",
    9: """UPDATE line_user SET last_activity_period = 'over_90_days'
          WHERE id = (SELECT min(id) FROM line_user WHERE last_activity_period = 'first')""",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", [int(one) for one in os.environ.get("SEED", " ".join(SEEDS)).split()])


def assert_unbroken(evidence: Evidence, seed: int) -> None:
    broken = violations(evidence)
    assert not broken, "\n".join(f"seed {seed}: {violation}" for violation in broken)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_thirty_kills_over_the_whole_platform_lose_double_and_hold_up_nothing(
    tmp_path: Path, seed: int
) -> None:
    with storm(tmp_path, seed, LONG) as evidence:
        assert_unbroken(evidence, seed)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """Of a short storm over the commands."""
    with storm(tmp_path_factory.mktemp("storm"), 1, SHORT) as evidence:
        yield evidence


def test_kills_over_the_commands_lose_double_and_hold_up_nothing(evidence: Evidence) -> None:
    assert_unbroken(evidence, 1)
    assert evidence.events.posted
    assert len(evidence.audiences.sent) > 10
    assert len(evidence.activities.delivered) > 100
    assert evidence.audiences.expected().firings


@pytest.mark.parametrize("promise", DAMAGE)
def test_a_broken_promise_would_be_named(evidence: Evidence, promise: int) -> None:
    """A little damage, undone afterwards, and the comparison says so."""
    with evidence.connection.transaction(force_rollback=True):
        assert evidence.connection.execute(DAMAGE[promise]).rowcount == 1
        assert list(COMPARISONS[promise](evidence))
    assert not list(COMPARISONS[promise](evidence))
