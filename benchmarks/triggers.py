"""Firing the rules of an audience for those who came, beside the rules asked in Python, user by user.

Five rules, four with a condition, look at each user in a stored plan. The peer reads plan and users with
SQLAlchemy, asks the rules in Python and inserts the firings in bulk. The limit inserts the same firings from
a table that holds them ready. All of them commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from activity_platform.audience.interfaces import MembershipChange
from activity_platform.audience.triggers import evaluate
from activity_platform.settings import Settings
from benchmarks._accounts import ORGANIZATION, Account, account
from benchmarks._models import AudienceChange, LineUser, TriggerFiring, TriggerRule, session
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer, stack

CHANGES = 100_000
TIMES = 10
PEER_BATCH = 5_000

EVALUATE, IN_PYTHON, BARE = "evaluate", "SQLAlchemy, rules in Python", "bare INSERT … SELECT"

CONDITIONS: tuple[dict[str, Any], ...] = (
    {},
    {"language": ["th", "ja"]},
    {"activity_status": "active", "activity_type": ["message"]},
    {"inactive_days": {"at_least": 7, "at_most": 30}},
    {"never_active": True},
)
ADD_RULE = """
    INSERT INTO trigger_rule (organization_id, line_oa_id, kind, audience_id, on_event, conditions)
    VALUES (%s, %s, 'audience_membership', %s, 'added', %s)
"""
ADD_PLAN = """
    INSERT INTO audience_change (import_id, user_id, change)
    SELECT %s, id, 'added' FROM line_user WHERE line_oa_id = %s ORDER BY id LIMIT %s
"""
COLUMNS = "rule_id, user_id, audience_id, on_event, queue, message_id, fired_at"
KEEP_READY = f"CREATE UNLOGGED TABLE ready AS SELECT {COLUMNS} FROM trigger_firing"
INSERT_READY = f"""
    INSERT INTO trigger_firing ({COLUMNS}) SELECT {COLUMNS} FROM ready ORDER BY rule_id, user_id
"""


def run(options: Options) -> Iterator[Comparison]:
    """Firings a second."""
    changes, fewer = options.size(CHANGES), max(1, options.size(CHANGES) // TIMES)
    with stack() as running, account(Settings.load(running.environment)) as one:
        one.know(changes)
        audience = one.add_audience()
        for conditions in CONDITIONS:
            one.connection.execute(ADD_RULE, [ORGANIZATION, one.line_oa_id, audience, Jsonb(conditions)])
        large = Plan(one, audience, import_id=1, changes=changes)
        small = Plan(one, audience, import_id=2, changes=fewer)
        large.keep_ready()
        yield compare(
            "triggers",
            f"{changes:,} changes, {len(CONDITIONS)} rules",
            "firings/s",
            {EVALUATE: large.evaluated, IN_PYTHON: small.evaluated_in_python, BARE: large.inserted},
            options,
            [peer(IN_PYTHON), limit(BARE)],
        )
        less, more = f"{fewer:,} changes", f"{changes:,} changes"
        yield compare(
            "triggers",
            f"{TIMES} times the changes",
            "firings/s",
            {more: large.evaluated, less: small.evaluated},
            options,
            [base(less, FLAT)],
        )


class Plan:
    """The stored plan of an import, and ways to fire for it."""

    def __init__(self, one: Account, audience: int, *, import_id: int, changes: int) -> None:
        self._account = one
        self._connection = one.connection
        self._change = MembershipChange(
            import_id, audience, one.line_oa_id, ORGANIZATION, "create_audience", str(import_id)
        )
        self._connection.execute(ADD_PLAN, [import_id, one.line_oa_id, changes])
        self._connection.execute("VACUUM ANALYZE audience_change")

    def keep_ready(self) -> None:
        self.evaluated()
        self._connection.execute(KEEP_READY)
        self._connection.execute("VACUUM ANALYZE ready")

    def evaluated(self) -> float:
        return self._rate(
            lambda now: evaluate(self._connection, self._change, now=now, log=logging.getLogger(__name__))
        )

    def inserted(self) -> float:
        return self._rate(lambda _: self._connection.execute(INSERT_READY).rowcount)

    def evaluated_in_python(self) -> float:
        with session(self._account.settings.database_url) as opened:
            return self._rate(lambda now: _evaluate(opened, self._change, now))

    def _rate(self, fire: Callable[[datetime], int]) -> float:
        self._connection.execute("TRUNCATE trigger_firing")
        started = time.perf_counter()
        firings = fire(datetime.now(UTC))
        return firings / (time.perf_counter() - started)


def _evaluate(opened: Session, change: MembershipChange, now: datetime) -> int:
    rules = opened.scalars(select(TriggerRule).where(TriggerRule.audience_id == change.audience_id)).all()
    changed = (
        select(AudienceChange.change, LineUser)
        .join(LineUser, (LineUser.line_oa_id == change.line_oa_id) & (LineUser.id == AudienceChange.user_id))
        .where(AudienceChange.import_id == change.import_id)
        .execution_options(yield_per=PEER_BATCH)
    )
    firings = [
        {
            "rule_id": rule.id,
            "user_id": user.id,
            "audience_id": change.audience_id,
            "on_event": event,
            "queue": change.queue,
            "message_id": change.message_id,
        }
        for event, user in opened.execute(changed)
        for rule in rules
        if rule.on_event == event and _holds(rule.conditions, user, now)
    ]
    opened.execute(insert(TriggerFiring), firings)
    opened.commit()
    return len(firings)


def _holds(conditions: dict[str, Any], user: LineUser, now: datetime) -> bool:
    if "language" in conditions and user.language not in conditions["language"]:
        return False
    if "activity_status" in conditions and user.last_activity_status != conditions["activity_status"]:
        return False
    if "activity_type" in conditions and user.last_activity_type not in conditions["activity_type"]:
        return False
    at = user.last_activity_date
    if "never_active" in conditions and (at is None) != conditions["never_active"]:
        return False
    days = conditions.get("inactive_days")
    return days is None or (at is not None and days["at_least"] <= (now - at).days <= days["at_most"])
