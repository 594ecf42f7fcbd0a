"""Made-up but lifelike interaction events: sessions of users who are shown things and pick some.

What users like follows Zipf's law, and each user comes back with its own frequency. A session begins with a
search or an open map, shows a ranked list (impressions), and goes on with the ones that were picked: views
and dwells, taps, sometimes a save, an RSVP, a check-in. Every verb and every object type occurs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from activity_platform.activity.vocabulary import EDGE_RULES, ObjectType, Verb

CATALOG = {
    ObjectType.EVENT: 400,
    ObjectType.LOCATION: 250,
    ObjectType.MOMENT: 150,
    ObjectType.USER: 80,
    ObjectType.PLAN: 60,
    ObjectType.QUERY: 120,
}
SURFACES = ("feed", "search", "map", "profile", "picker")
SHOWN = 12

#: What may follow once an object is picked: verb, probability, object types it applies to (empty: all).
FOLLOW_UPS: Sequence[tuple[Verb, float, frozenset[ObjectType]]] = (
    (Verb.VIEW, 0.9, frozenset()),
    (Verb.DWELL, 0.5, frozenset()),
    (Verb.REACT, 0.15, frozenset({ObjectType.MOMENT, ObjectType.EVENT})),
    (Verb.SAVE, 0.2, frozenset({ObjectType.EVENT, ObjectType.LOCATION, ObjectType.PLAN})),
    (Verb.SHARE, 0.08, frozenset()),
    (Verb.RSVP, 0.12, frozenset({ObjectType.EVENT})),
    (Verb.ATTEND, 0.06, frozenset({ObjectType.EVENT})),
    (Verb.CHECKIN, 0.1, frozenset({ObjectType.LOCATION})),
    (Verb.PLAN, 0.05, frozenset({ObjectType.EVENT, ObjectType.LOCATION})),
)

Event = dict[str, Any]


@dataclass(frozen=True)
class Session:
    """One user's visit; its events go out in one request."""

    user: str
    events: Sequence[Event]


@dataclass(frozen=True)
class Affinity:
    """What the edges of one (actor, edge type, target type, target) must add up to."""

    weight: float
    event_count: int


EdgeKey = tuple[str, str, str, str]


def sessions(users: int, events: int, *, prefix: str, seed: int = 7) -> Iterator[Session]:
    """Sessions of `users` users named `<prefix>0001`… until at least `events` events have been made."""
    chance = random.Random(seed)  # noqa: S311 - traffic, not secrets
    names = [f"{prefix}{number:04d}" for number in range(1, users + 1)]
    how_often = [1 / rank**0.7 for rank in range(1, users + 1)]
    made = 0
    yield from (first := [Session(name, _session(chance)) for name in names])
    made += sum(len(session.events) for session in first)
    while made < events:
        session = Session(chance.choices(names, how_often)[0], _session(chance))
        made += len(session.events)
        yield session


def expected_edges(sent: Iterable[Session]) -> Mapping[EdgeKey, Affinity]:
    """The sums that folding those sessions must give, straight from the vocabulary."""
    sums: dict[EdgeKey, Affinity] = defaultdict(lambda: Affinity(0, 0))
    for session in sent:
        for event in session.events:
            rule = EDGE_RULES.get(Verb(event["verb"]))
            if rule is not None:
                key = (session.user, rule.edge_type, event["object_type"], event["object_id"])
                sums[key] = Affinity(sums[key].weight + rule.weight, sums[key].event_count + 1)
    return sums


def _session(chance: random.Random) -> list[Event]:
    surface = chance.choice(SURFACES)
    query = _pick(chance, ObjectType.QUERY)
    events = [_event(Verb.SEARCH, query, surface, {"text": f"query {query[1]}"})]
    picked_kinds = [kind for kind in CATALOG if kind is not ObjectType.QUERY]
    shown = [_pick(chance, chance.choice(picked_kinds)) for _ in range(chance.randint(4, SHOWN))]
    events += [
        _event(Verb.IMPRESSION, thing, surface, {"rank": rank, "query": query[1]})
        for rank, thing in enumerate(shown, start=1)
    ]
    for rank, thing in enumerate(shown, start=1):
        if chance.random() < 1 / (1 + rank):
            verb = chance.choice((Verb.TAP, Verb.SELECT))
            events.append(_event(verb, thing, surface, {"rank": rank}))
            events += _follow_ups(chance, thing, surface)
        elif chance.random() < 0.03:
            events.append(_event(Verb.DISMISS, thing, surface, {"rank": rank}))
    return events


def _follow_ups(chance: random.Random, thing: tuple[ObjectType, str], surface: str) -> Iterator[Event]:
    for verb, probability, kinds in FOLLOW_UPS:
        if (not kinds or thing[0] in kinds) and chance.random() < probability:
            context = {"seconds": round(chance.expovariate(1 / 20), 1)} if verb is Verb.DWELL else None
            yield _event(verb, thing, surface, context)


_POPULARITY = {
    kind: list(accumulate(1 / rank for rank in range(1, size + 1))) for kind, size in CATALOG.items()
}


def _pick(chance: random.Random, kind: ObjectType) -> tuple[ObjectType, str]:
    number = chance.choices(range(1, CATALOG[kind] + 1), cum_weights=_POPULARITY[kind])[0]
    return kind, f"{kind.value}-{number}"


def _event(
    verb: Verb, thing: tuple[ObjectType, str], surface: str, context: Mapping[str, Any] | None
) -> Event:
    event: Event = {
        "verb": verb.value,
        "object_type": thing[0].value,
        "object_id": thing[1],
        "surface": surface,
    }
    return event if context is None else event | {"context": context}
