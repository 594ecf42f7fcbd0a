"""The words of an activity event, and what each verb is worth as affinity.

One table feeds validation, the fold's SQL and the documentation. Words and weights are those of the
product's activity specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What a user did. `impression` is shown but not picked, the negative signal."""

    VIEW = "view"
    DWELL = "dwell"
    TAP = "tap"
    SELECT = "select"
    SAVE = "save"
    RSVP = "rsvp"
    ATTEND = "attend"
    CHECKIN = "checkin"
    SHARE = "share"
    DISMISS = "dismiss"
    SEARCH = "search"
    REACT = "react"
    PLAN = "plan"
    IMPRESSION = "impression"


class ObjectType(StrEnum):
    """What the user did it to."""

    LOCATION = "location"
    EVENT = "event"
    MOMENT = "moment"
    USER = "user"
    PLAN = "plan"
    QUERY = "query"


class EdgeType(StrEnum):
    """The kinds of affinity. `dismissed` is a negative one; its weight is how strongly."""

    SAVED = "saved"
    ATTENDED = "attended"
    VISITED = "visited"
    REACTED = "reacted"
    TAPPED = "tapped"
    DISMISSED = "dismissed"


@dataclass(frozen=True)
class EdgeRule:
    """An event of the verb adds `weight` to the edge of `edge_type`."""

    edge_type: EdgeType
    weight: float


#: Verbs that are not here stay in the log for training and carry no affinity. Each weight is a multiple of
#: 0.5, so that float8 adds them exactly up to 2^52.
EDGE_RULES: Mapping[Verb, EdgeRule] = {
    Verb.SAVE: EdgeRule(EdgeType.SAVED, 3),
    Verb.RSVP: EdgeRule(EdgeType.ATTENDED, 3),
    Verb.ATTEND: EdgeRule(EdgeType.ATTENDED, 3),
    Verb.CHECKIN: EdgeRule(EdgeType.VISITED, 2),
    Verb.REACT: EdgeRule(EdgeType.REACTED, 1),
    Verb.TAP: EdgeRule(EdgeType.TAPPED, 0.5),
    Verb.SELECT: EdgeRule(EdgeType.TAPPED, 0.5),
    Verb.DISMISS: EdgeRule(EdgeType.DISMISSED, 1),
}
