"""Rules of kind `audience_membership`: what fires for users who came into an audience or left it.

A rule belongs to an audience and an event. Its conditions are a small JSON object, of which all must hold:

    {"language": ["th", …], "activity_status": "active" | "inactive", "activity_type": ["message", …],
     "inactive_days": {"at_least": n, "at_most": n}, "never_active": true | false}

A rule whose conditions are anything else fires nothing and is reported; the others work.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from activity_platform.audience.interfaces import MembershipChange

KIND = "audience_membership"

_Days = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class InactiveDays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole days since the last activity, both ends included. It never holds for someone never active."""

    at_least: _Days | msgspec.UnsetType = msgspec.UNSET
    at_most: _Days | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.at_least is msgspec.UNSET and self.at_most is msgspec.UNSET:
            raise ValueError("at_least or at_most must be there")


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold of the user when the command finishes."""

    language: _Words | msgspec.UnsetType = msgspec.UNSET
    activity_status: Literal["active", "inactive"] | msgspec.UnsetType = msgspec.UNSET
    activity_type: _Words | msgspec.UnsetType = msgspec.UNSET
    inactive_days: InactiveDays | msgspec.UnsetType = msgspec.UNSET
    never_active: bool | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Rule:
    """A row of `trigger_rule`. `conditions` is its JSON text."""

    id: int
    organization_id: int
    line_oa_id: int
    kind: str
    audience_id: int
    on_event: str
    enabled: bool
    conditions: str

    @property
    def problem(self) -> str | None:
        """Why the rule can't fire anything; None for one that can."""
        if self.kind != KIND:
            return f"the kind is not {KIND}"
        try:
            parse_conditions(self.conditions)
        except ValueError as error:
            return f"the conditions are not valid: {error}"
        return None


@dataclass(frozen=True)
class RuleReport:
    """What a rule fired, and how much of that is still to be sent."""

    id: int
    audience_id: int
    on_event: str
    enabled: bool
    firings: int
    unpublished: int
    problem: str | None


@dataclass(frozen=True)
class RuleCheck:
    """How many of the audience's present members a rule's conditions hold for."""

    id: int
    audience_id: int
    on_event: str
    enabled: bool
    matches: int
    problem: str | None


_COLUMNS = sql.SQL("""
    r.id, r.organization_id, r.line_oa_id, r.kind, r.audience_id, r.on_event, r.enabled,
    r.conditions::text AS conditions
""")
# By trigger_rule_audience.
_FIND_RULES = sql.SQL("""
SELECT {columns} FROM trigger_rule r
WHERE r.audience_id = %(audience_id)s AND r.enabled
    AND r.line_oa_id = %(line_oa_id)s AND r.organization_id = %(organization_id)s
ORDER BY r.id
""").format(columns=_COLUMNS)
_ALL_RULES = sql.SQL("SELECT {columns} FROM trigger_rule r ORDER BY r.id").format(columns=_COLUMNS)
_AUDIENCE_PROBLEM = """
SELECT CASE WHEN deleted_at IS NOT NULL THEN 'the audience is deleted'
    WHEN (organization_id, line_oa_id) <> (%s, %s) THEN 'the audience is another OA''s or organization''s' END
FROM audience WHERE id = %s
"""
_RULE = sql.SQL("""
jsonb_to_recordset(%(rules)s) AS rule (
    id bigint, on_event text, language text[], activity_status text, activity_type text[],
    at_least bigint, at_most bigint, never_active boolean
)
""")
# An activity at no finite time says nothing about days.
_HOLDS = sql.SQL("""
    (rule.language IS NULL OR u.language = ANY(rule.language))
    AND (rule.activity_status IS NULL OR u.last_activity_status = rule.activity_status)
    AND (rule.activity_type IS NULL OR u.last_activity_type = ANY(rule.activity_type))
    AND (rule.never_active IS NULL OR (u.last_activity_date IS NULL) = rule.never_active)
    AND (coalesce(rule.at_least, rule.at_most) IS NULL OR CASE WHEN isfinite(u.last_activity_date)
        THEN greatest(floor(extract(epoch FROM %(now)s - u.last_activity_date) / 86400), 0)
            BETWEEN coalesce(rule.at_least, 0) AND coalesce(rule.at_most, 2147483647) END)
""")
# The plan by its primary key, each user once by theirs, and only then the rules: a user is looked up once,
# not once for each rule.
_FIRE = sql.SQL("""
WITH u AS MATERIALIZED (
    SELECT c.change, u.id, u.language, u.last_activity_status, u.last_activity_type, u.last_activity_date
    FROM audience_change c
    JOIN line_user u ON u.line_oa_id = %(line_oa_id)s AND u.id = c.user_id
    WHERE c.import_id = %(import_id)s
)
INSERT INTO trigger_firing (rule_id, user_id, audience_id, on_event, queue, message_id, fired_at)
SELECT rule.id, u.id, %(audience_id)s, rule.on_event, %(queue)s, %(message_id)s, %(now)s
FROM u JOIN {rule} ON rule.on_event = u.change
WHERE {holds}
ORDER BY rule.id, u.id
ON CONFLICT (rule_id, user_id, queue, message_id) DO NOTHING
""").format(rule=_RULE, holds=_HOLDS)
# By the GIN index line_user_audience_ids.
_MATCHES = sql.SQL("""
SELECT count(*) FROM line_user u CROSS JOIN {rule}
WHERE u.line_oa_id = %(line_oa_id)s AND u.audience_ids @> ARRAY[%(audience_id)s]::bigint[] AND {holds}
""").format(rule=_RULE, holds=_HOLDS)
# By the unique key, which starts with rule_id.
_FIRINGS = """
SELECT count(*), count(*) FILTER (WHERE published_at IS NULL) FROM trigger_firing WHERE rule_id = %s
"""


def parse_conditions(text: str) -> Conditions:
    """Raises `ValueError` that says what is wrong."""
    try:
        return msgspec.json.decode(text, type=Conditions)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def evaluate(
    connection: psycopg.Connection, change: MembershipChange, *, now: datetime, log: logging.Logger
) -> int:
    """Fires the audience's rules for the users in the stored plan, within the caller's transaction.

    Returns the number of firings. A rule fires once for a user and message, however often it is evaluated.
    """
    keys = asdict(change)
    usable = []
    for rule in _read(connection, _FIND_RULES, keys):
        if rule.problem:
            log.warning("rule %s fires nothing: %s", rule.id, rule.problem)
        else:
            usable.append(_as_record(rule))
    if not usable:
        return 0
    return connection.execute(_FIRE, keys | {"rules": Jsonb(usable), "now": now}).rowcount


def list_rules(connection: psycopg.Connection) -> list[RuleReport]:
    """Every rule, with what it fired so far."""
    reports = []
    for rule in _read(connection, _ALL_RULES, {}):
        ((firings, unpublished),) = connection.execute(_FIRINGS, [rule.id])
        problem = rule.problem or _audience_problem(connection, rule)
        reports.append(
            RuleReport(rule.id, rule.audience_id, rule.on_event, rule.enabled, firings, unpublished, problem)
        )
    return reports


def check_rules(connection: psycopg.Connection, *, now: datetime) -> list[RuleCheck]:
    """Every rule, with what is wrong with it and what it would match today."""
    return [
        RuleCheck(
            rule.id,
            rule.audience_id,
            rule.on_event,
            rule.enabled,
            0 if rule.problem else _count_matches(connection, rule, now),
            rule.problem or _audience_problem(connection, rule),
        )
        for rule in _read(connection, _ALL_RULES, {})
    ]


def _count_matches(connection: psycopg.Connection, rule: Rule, now: datetime) -> int:
    keys = {"audience_id": rule.audience_id, "line_oa_id": rule.line_oa_id}
    ((matches,),) = connection.execute(_MATCHES, keys | {"rules": Jsonb([_as_record(rule)]), "now": now})
    return int(matches)


def _audience_problem(connection: psycopg.Connection, rule: Rule) -> str | None:
    key = [rule.organization_id, rule.line_oa_id, rule.audience_id]
    row = connection.execute(_AUDIENCE_PROBLEM, key).fetchone()
    return row[0] if row else "there is no such audience"


def _read(connection: psycopg.Connection, statement: sql.Composed, keys: Mapping[str, Any]) -> list[Rule]:
    with connection.cursor(row_factory=class_row(Rule)) as cursor:
        return cursor.execute(statement, keys).fetchall()


def _as_record(rule: Rule) -> dict[str, Any]:
    """The rule as a row of `_RULE`: a condition that it doesn't have is absent there."""
    record: dict[str, Any] = msgspec.to_builtins(parse_conditions(rule.conditions))
    days: dict[str, int] = record.pop("inactive_days", {})
    return {"id": rule.id, "on_event": rule.on_event, **record, **days}
