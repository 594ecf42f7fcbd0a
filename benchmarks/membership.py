"""Making an audience of users that are all known, beside SQLAlchemy and beside one bare UPDATE of the rows.

The figure is the whole command as a worker does it: the file is read from S3 and understood, the plan stored
and applied in chunks, the CSV written, everything recorded. The peer does in one transaction what is needed
for the rows and the CSV alone. The limit is the UPDATE without anything else. Every sample finds a new table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from activity_platform.settings import Settings
from benchmarks._accounts import Account, account
from benchmarks._models import LineUser, session
from benchmarks.harness import FLAT, Comparison, Options, base, compare, limit, peer, stack

MEMBERS = 100_000
PEER_MEMBERS = 10_000  # some thousand a second
MOST_MEMBERS = 1_500_000  # LINE's own limit
MOST_SECONDS = 60
BATCH = 5_000
MOST_BYTES = 1 << 27

COMMAND, ORM, BARE = "create_audience", "SQLAlchemy, one transaction", "bare UPDATE"

BARE_UPDATE = "UPDATE line_user SET audience_ids = array_append(audience_ids, %s) WHERE line_oa_id = %s"


def run(options: Options) -> Iterator[Comparison]:
    """Members a second."""
    members, most = options.size(MEMBERS), options.size(MOST_MEMBERS)
    with stack() as running, account(Settings.load(running.environment)) as one:
        yield compare(
            "membership",
            f"{members:,} known users",
            "members/s",
            {
                COMMAND: _created(one, members),
                ORM: _created_with_orm(one, options.size(PEER_MEMBERS)),
                BARE: _updated(one, members),
            },
            options,
            [peer(ORM), limit(BARE)],
        )
        less, more = f"an audience of {members:,}", f"an audience of {most:,}"
        yield compare(
            "membership",
            f"{most:,} known users",
            "members/s",
            {more: _created(one, most), less: _created(one, members)},
            replace(options, rounds=1),
            [base(less, FLAT)],
            aim=MOST_MEMBERS / MOST_SECONDS,
        )


def _created(one: Account, members: int) -> Callable[[], float]:
    path = one.upload(members)

    def measure() -> float:
        one.know(members)
        one.create(one.add_audience(), path)
        started = time.perf_counter()
        result = one.process()
        took = time.perf_counter() - started
        assert result.stats["members"] == members
        return members / took

    return measure


def _created_with_orm(one: Account, members: int) -> Callable[[], float]:
    path = one.upload(members)

    def measure() -> float:
        one.know(members)
        audience = one.add_audience()
        with session(one.settings.database_url) as opened:
            started = time.perf_counter()
            _set_members(opened, one, audience, path)
            opened.commit()
            return members / (time.perf_counter() - started)

    return measure


def _set_members(opened: Session, one: Account, audience: int, path: str) -> None:
    users = select(LineUser).where(LineUser.line_oa_id == one.line_oa_id)
    _, *named = one.store.get(path, most_bytes=MOST_BYTES).decode().splitlines()
    for user in opened.scalars(users.where(LineUser.audience_ids.contains([audience]))):
        user.audience_ids = [other for other in user.audience_ids if other != audience]
    remaining = iter(named)
    while batch := list(islice(remaining, BATCH)):
        for user in opened.scalars(users.where(LineUser.line_user_id.in_(batch))):
            user.audience_ids = [*user.audience_ids, audience]
        opened.flush()
    members = opened.scalars(users.where(LineUser.audience_ids.contains([audience])))
    lines = "".join(f"{line_user_id}\n" for line_user_id in sorted(user.line_user_id for user in members))
    one.store.put(f"{path}.members", f"Line UserID\n{lines}".encode(), content_type="text/csv")


def _updated(one: Account, members: int) -> Callable[[], float]:
    def measure() -> float:
        one.know(members)
        audience = one.add_audience()
        started = time.perf_counter()
        one.connection.execute(BARE_UPDATE, [audience, one.line_oa_id])
        return members / (time.perf_counter() - started)

    return measure
