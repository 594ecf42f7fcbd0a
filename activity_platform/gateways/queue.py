"""The five streams of Redis, and the stream of dead letters beside each.

An entry in a stream is work not yet done. Reading changes nothing (XRANGE from the head, no consumer group);
`finish` deletes what is done, `bury` moves what can't be done to `<queue>:dead`, `replay` brings it back.
The last two are scripts that look whether the entry is still there, so that doing either twice is harmless.

Every command exists in Redis 6.2. None is sent again by itself: a repeated XADD would be a second message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from activity_platform.failures import TransientFailure, UsageError

T = TypeVar("T")
RawEntry: TypeAlias = tuple[bytes, dict[bytes, bytes]]

LAST_ACTIVITY = "line_user_last_activity"
CREATE_AUDIENCE = "create_audience"
UPDATE_AUDIENCE = "update_audience"
DELETE_AUDIENCE = "delete_audience"
MOOKEPT_AUDIENCE = "mookept_audience"
QUEUES = (LAST_ACTIVITY, CREATE_AUDIENCE, UPDATE_AUDIENCE, DELETE_AUDIENCE, MOOKEPT_AUDIENCE)
DEAD_SUFFIX = ":dead"

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_MESSAGE_ID_CHARACTERS = 64
PAGE_ENTRIES = 1_000

#: A sensor's tick has 5 s, and must still say what is wrong.
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 4.0

#: The dead letter's reason for an entry that doesn't say what to do.
BAD_PAYLOAD = "bad_payload"

_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)

#: How payloads of all five streams hold an id: an integer that a bigint takes, or the same as digits.
PayloadId: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    | Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,19}\Z")]
)
#: How payloads hold a text: 1 to 64 characters without NUL. msgspec refuses lone surrogates by itself.
PayloadText: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"\A[^\x00]*\Z")]


def payload_id(value: int | str) -> int:
    """The number that a `PayloadId` means. Raises `ValueError` for one that no bigint above 0 is."""
    number = int(value)
    if not 1 <= number <= 2**63 - 1:
        raise ValueError("an id is not from 1 to 2^63 - 1")
    return number


class QueueAway(TransientFailure):
    """Redis can't be reached, refuses to work, or broke off: what was asked may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream. `problem` says why it is no message; such an entry can only be buried.

    `message_id` is the producer's, or else the entry's id. `original_id` is the id of the entry that a
    replayed one goes back to, and else its own: its milliseconds are the message's time.
    """

    queue: str
    entry_id: str
    payload: bytes
    message_id: str
    original_id: str
    problem: str | None = None


@dataclass(frozen=True)
class Page:
    """Entries in order; `more` if the stream holds others after them; when Redis read it, by its clock."""

    entries: tuple[Entry, ...]
    more: bool
    read_at: datetime

    @property
    def oldest_seconds(self) -> float | None:
        """How long the first has waited; None when there is none."""
        return _age(self.entries[0].entry_id, self.read_at) if self.entries else None


@dataclass(frozen=True)
class Burial:
    """An entry on its way to the dead letters. `error` is a line for people; it holds no personal data."""

    entry: Entry
    reason: str
    error: str
    attempts: int = 1


@dataclass(frozen=True)
class DeadLetter:
    """What could not be done. `payload` are the bytes that the producer sent."""

    queue: str
    dead_id: str
    entry_id: str
    message_id: str
    payload: bytes
    attempts: int
    reason: str
    error: str
    failed_at: str

    def is_named_by(self, names: frozenset[str]) -> bool:
        """Whether one of the names is its own id, its entry's or its message's."""
        return not names.isdisjoint((self.dead_id, self.entry_id, self.message_id))


@dataclass(frozen=True)
class Replay:
    """What went back to its stream (message ids), and the names under which nothing was found."""

    message_ids: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class QueueStatus:
    """A line of `queue status`. `oldest_seconds`: how long the head has waited; None when it is empty."""

    queue: str
    depth: int
    dead: int
    oldest_seconds: float | None


def connect(redis_url: str) -> redis.Redis:
    """A client in bytes mode that gives up after seconds. It connects when first used.

    Parameters in the address can't switch this off: a client that decodes loses a page to one bad byte.
    """
    try:
        pool = redis.ConnectionPool.from_url(redis_url)
    except ValueError as error:
        raise UsageError(f"REDIS_URL is not the address of a Redis: {error}") from None
    pool.connection_kwargs |= {
        "decode_responses": False,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "activity-platform",
    }
    return redis.Redis.from_pool(pool)


@contextmanager
def outages_named() -> Iterator[None]:
    """Within it, every failure of Redis leaves as `QueueAway`, with what the client or the server said."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise QueueAway(f"Redis can't be reached: {_first_line(error)}") from error
    except redis.RedisError as error:
        raise QueueAway(f"Redis refused to work: {_first_line(error)}") from error


def id_order(entry_id: str) -> tuple[int, int]:
    """What sorts entry ids as their stream does: milliseconds, then sequence."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence)


def known(queue: str) -> str:
    """The name itself. Raises `UsageError` when it is none of the five."""
    if queue not in QUEUES:
        raise UsageError(f"there is no queue {queue!r}: choose one of {', '.join(QUEUES)}")
    return queue


# An entry with thousands of fields is nobody's message; Lua can't unpack more than some thousand of them.
_FIELDS = """
local function fields(stream, id)
  local found = redis.call('XRANGE', stream, id, id)[1]
  return found and {unpack(found[2], 1, math.min(#found[2], 2000))}
end
"""

# KEYS: queue, dead letters. ARGV: entry_id, message_id, original_id, attempts, reason, error, failed_at.
# Fields that nobody asked for travel along, so that a producer's mistake can be seen and mended.
_BURY = (
    _FIELDS
    + """
local old = fields(KEYS[1], ARGV[1])
if not old then return 0 end
local own = {message_id=1, original_id=1, entry_id=1, attempts=1, reason=1, error=1, failed_at=1, payload=1}
local payload, rest = '', {}
for i = 1, #old, 2 do
  if old[i] == 'payload' then payload = old[i + 1]
  elseif not own[old[i]] then rest[#rest + 1] = old[i]; rest[#rest + 1] = old[i + 1] end
end
if ARGV[3] ~= ARGV[1] then rest[#rest + 1] = 'original_id'; rest[#rest + 1] = ARGV[3] end
redis.call('XADD', KEYS[2], '*', 'payload', payload, 'message_id', ARGV[2], 'entry_id', ARGV[1],
  'attempts', ARGV[4], 'reason', ARGV[5], 'error', ARGV[6], 'failed_at', ARGV[7], unpack(rest))
return redis.call('XDEL', KEYS[1], ARGV[1])
"""
)

# KEYS: queue, dead letters. ARGV: dead_id. The time of the message stays that of its first entry.
_REPLAY = (
    _FIELDS
    + """
local old = fields(KEYS[2], ARGV[1])
if not old then return 0 end
local own = {entry_id=1, original_id=1, attempts=1, reason=1, error=1, failed_at=1}
local value, new = {}, {}
for i = 1, #old, 2 do
  value[old[i]] = old[i + 1]
  if not own[old[i]] then new[#new + 1] = old[i]; new[#new + 1] = old[i + 1] end
end
redis.call('XADD', KEYS[1], '*', 'original_id', value.original_id or value.entry_id or ARGV[1], unpack(new))
return redis.call('XDEL', KEYS[2], ARGV[1])
"""
)


class Queues:
    """All streams of one Redis. Every method raises `QueueAway` when Redis is away or refuses to work."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def publish(self, queue: str, payload: bytes | str, *, message_id: str | None = None) -> str:
        """Adds an entry and returns its id. A `QueueAway` leaves open whether the entry was added."""
        fields: dict[Any, Any] = {"payload": payload}
        if message_id is not None:
            fields["message_id"] = message_id
        with outages_named():
            return _text(cast(bytes, self.client.xadd(queue, fields)))

    def publish_many(self, queue: str, payloads: Iterable[bytes | str]) -> int:
        """Adds an entry for each, a thousand a round trip; returns how many."""
        count = 0
        for chunk in _chunks(payloads, PAGE_ENTRIES):
            with outages_named(), self.client.pipeline(transaction=False) as pipeline:
                for payload in chunk:
                    pipeline.xadd(queue, {"payload": payload})
                count += len(pipeline.execute())
        return count

    def enqueue(self, queue: str, text: str) -> str:
        """`publish` for people. Raises `UsageError` unless `text` is a JSON object of at most 64 KiB."""
        payload = text.encode(errors="surrogatepass")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise UsageError(f"the payload has {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are taken")
        try:
            msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"the payload is not a JSON object: {error}") from None
        return self.publish(known(queue), payload)

    def peek(self, queue: str, *, count: int = PAGE_ENTRIES, after: str | None = None) -> Page:
        """The first `count` entries, or the first after an entry id. One round trip."""
        with outages_named(), self.client.pipeline(transaction=False) as pipeline:
            pipeline.xrange(queue, min=f"({after}" if after else "-", count=count + 1)
            pipeline.time()
            found, time = pipeline.execute()
        entries = tuple(_entry(queue, *raw) for raw in islice(found, count))
        return Page(entries, len(found) > count, _moment(time))

    def get(self, queue: str, entry_id: str) -> Entry | None:
        """The entry, unless it is finished, buried or never was."""
        if not _ENTRY_ID.fullmatch(entry_id):
            return None
        found = self._read(queue, entry_id, entry_id)
        return _entry(queue, *found[0]) if found else None

    def finish(self, queue: str, entry_ids: Sequence[str]) -> int:
        """Deletes entries whose effect is committed; returns how many were still there."""
        if not entry_ids:
            return 0
        with outages_named():
            return int(self.client.xdel(queue, *entry_ids))

    def bury(self, burials: Iterable[Burial], *, now: datetime) -> int:
        """Moves entries to the dead letters, each in one step; returns how many were still there."""
        with outages_named(), self.client.pipeline(transaction=False) as pipeline:
            for burial in burials:
                pipeline.eval(_BURY, 2, *_burial_arguments(burial, now))
            return sum(pipeline.execute())

    def dead(self, queue: str) -> Iterator[DeadLetter]:
        """The dead letters that there are now, oldest first, read in pages."""
        stream = known(queue) + DEAD_SUFFIX
        with outages_named():
            newest = cast(list[RawEntry], self.client.xrevrange(stream, count=1))
        start = "-"
        while newest and (page := self._read(stream, start, _text(newest[0][0]))):
            yield from (_dead_letter(queue, *raw) for raw in page)
            start = f"({_text(page[-1][0])}"

    def replay(
        self, queue: str, names: Sequence[str] = (), *, forget: Callable[[list[str]], object]
    ) -> Replay:
        """Puts dead letters back: those that `names` name by dead, entry or message id; all without names.

        `forget` is given the message ids first, to clear the attempts counted so far: a run that sees the
        entry before they are gone would bury it at once.
        """
        wanted = frozenset(names)
        letters = (letter for letter in self.dead(queue) if not wanted or letter.is_named_by(wanted))
        message_ids: list[str] = []
        found: set[str] = set()
        for chunk in _chunks(letters, PAGE_ENTRIES):
            forget([letter.message_id for letter in chunk])
            with outages_named(), self.client.pipeline(transaction=False) as pipeline:
                for letter in chunk:
                    pipeline.eval(_REPLAY, 2, queue, queue + DEAD_SUFFIX, letter.dead_id)
                moved = pipeline.execute()
            message_ids += [letter.message_id for letter, one in zip(chunk, moved, strict=True) if one]
            found.update(*((one.dead_id, one.entry_id, one.message_id) for one in chunk))
        return Replay(tuple(message_ids), tuple(name for name in names if name not in found))

    def depth(self, queue: str) -> int:
        """How many entries wait."""
        with outages_named():
            return int(self.client.xlen(queue))

    def status(self, queues: Sequence[str] = QUEUES) -> list[QueueStatus]:
        """A line a queue. One round trip."""
        with outages_named(), self.client.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.xlen(queue)
                pipeline.xlen(queue + DEAD_SUFFIX)
                pipeline.xrange(queue, count=1)
            pipeline.time()
            *answers, time = pipeline.execute()
        return [
            QueueStatus(queue, depth, dead, _age(_text(head[0][0]), _moment(time)) if head else None)
            for queue, (depth, dead, head) in zip(queues, _chunks(answers, 3), strict=True)
        ]

    def maxmemory_policy(self) -> str:
        """What Redis does when its memory is full. Only `noeviction` keeps queues whole."""
        with outages_named():  # INFO, since hosted servers refuse CONFIG
            return str(self.client.info("memory")["maxmemory_policy"])

    def _read(self, stream: str, first: str, last: str) -> list[RawEntry]:
        with outages_named():
            return cast(list[RawEntry], self.client.xrange(stream, first, last, count=PAGE_ENTRIES))


def _burial_arguments(burial: Burial, now: datetime) -> tuple[str, ...]:
    entry = burial.entry
    return (
        *(entry.queue, entry.queue + DEAD_SUFFIX),
        *(entry.entry_id, entry.message_id, entry.original_id),
        *(str(burial.attempts), burial.reason, burial.error, now.isoformat()),
    )


def _entry(queue: str, raw_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    entry_id = _text(raw_id)
    original_id = fields.get(b"original_id", b"").decode(errors="replace")
    if not _ENTRY_ID.fullmatch(original_id):
        original_id = entry_id
    message_id = entry_id
    problem = None
    if b"message_id" in fields:
        try:
            message_id = _message_id(fields[b"message_id"])
        except ValueError:
            problem = "message_id is not 1 to 64 characters without NUL"
    payload = fields.get(b"payload")
    if payload is None:
        problem = "the entry has no field payload"
    elif len(payload) > MAX_PAYLOAD_BYTES:
        problem = f"the payload has {len(payload)} bytes, more than {MAX_PAYLOAD_BYTES}"
    return Entry(queue, entry_id, payload or b"", message_id, original_id, problem)


def _message_id(value: bytes) -> str:
    text = value.decode()
    if not 1 <= len(text) <= MAX_MESSAGE_ID_CHARACTERS or "\0" in text:
        raise ValueError
    return text


def _dead_letter(queue: str, raw_id: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    attempts = text(b"attempts")
    return DeadLetter(
        queue=queue,
        dead_id=_text(raw_id),
        entry_id=text(b"entry_id"),
        message_id=text(b"message_id"),
        payload=fields.get(b"payload", b""),
        attempts=int(attempts) if attempts.isdecimal() else 0,
        reason=text(b"reason"),
        error=text(b"error"),
        failed_at=text(b"failed_at"),
    )


def _age(entry_id: str, now: datetime) -> float:
    return max(0.0, now.timestamp() - id_order(entry_id)[0] / 1e3)


def _moment(time: tuple[int, int]) -> datetime:
    seconds, microseconds = time
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    return iter(lambda: tuple(islice(rest, size)), ())


def _text(value: bytes) -> str:
    return value.decode()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
