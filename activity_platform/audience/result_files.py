"""Where the files of a command stand: its result, and beside it the entries that became no member."""

from __future__ import annotations

from activity_platform.audience.messages import AUDIENCE_QUEUES
from activity_platform.gateways.queue import Entry, id_order

CSV = "text/csv; charset=utf-8"


def message_moment(entry: Entry) -> int:
    """The microseconds since 1970 of the message's first entry, distinct by sequence and queue.

    The message alone decides it, so that a repeated attempt writes the same file, and two commands of one
    audience never do.
    """
    milliseconds, sequence = id_order(entry.original_id)
    queues = len(AUDIENCE_QUEUES)
    place = min(sequence, 999 // queues) * queues + AUDIENCE_QUEUES.index(entry.queue)
    return milliseconds * 1000 + place


def result_path(oa_hash: str, audience_id: int, moment: int) -> str:
    """The key of the members' CSV, which the multicast reads."""
    return f"private/{oa_hash}/audience/audience-{audience_id}-{moment}.csv"


def rejects_path(oa_hash: str, audience_id: int, moment: int) -> str:
    """The key of the rejects' CSV."""
    return result_path(oa_hash, audience_id, moment).removesuffix(".csv") + "-rejects.csv"
