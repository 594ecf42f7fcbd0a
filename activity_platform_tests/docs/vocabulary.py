"""The tables of docs/logging.md, from activity/vocabulary.py."""

from __future__ import annotations

from activity_platform.activity.vocabulary import EDGE_RULES, ObjectType, Verb
from activity_platform_tests.docs.markdown import table

#: When a client logs it: the verbs of ranked surfaces, and those that other tables know as well.
MEANINGS = {
    Verb.IMPRESSION: "It was shown. Without it nobody knows what was not picked.",
    Verb.SELECT: "It was picked from what was shown.",
    Verb.TAP: "It was touched without being picked, such as to see more.",
    Verb.VIEW: "Its page was open; a sample of these is enough.",
    Verb.DWELL: "For how long, as `context`; a sample of these is enough.",
    Verb.DISMISS: "It was sent away: a negative signal.",
    Verb.REACT: "A reaction, such as a like.",
    Verb.SEARCH: "A search; the object is the `query`.",
    Verb.SHARE: "It was passed on.",
    Verb.PLAN: "It was put into a plan.",
    Verb.SAVE: "It was saved. Only where no domain table keeps it.",
    Verb.RSVP: "An answer to an invitation. Only where no domain table keeps it.",
    Verb.ATTEND: "They took part. Only where no domain table keeps it.",
    Verb.CHECKIN: "They were there. Only where no domain table keeps it.",
}


def verbs() -> str:
    """Each verb, and the edge that it makes."""
    return table(("Verb", "Means", "Edge", "Weight"), [_row(verb) for verb in MEANINGS])


def object_types() -> str:
    """What an event can be about."""
    return ", ".join(f"`{object_type}`" for object_type in ObjectType) + "."


def _row(verb: Verb) -> tuple[str, str, str, str]:
    rule = EDGE_RULES.get(verb)
    edge = (f"`{rule.edge_type}`", f"{rule.weight:g}") if rule else ("", "")
    return f"`{verb}`", MEANINGS[verb], *edge
