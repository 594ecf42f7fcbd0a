"""What each table and column of the migrated database holds, and whether it tells of a person.

A migration that adds a column fails the tests until it stands here. `Personal` marks what names a person, or
is kept under a person's id; such a table also says how long a row is kept and what removes it. The pages
docs/data-model.md and docs/privacy.md are made from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Personal:
    """The description of a column that holds personal data."""

    about: str


@dataclass(frozen=True)
class Described:
    """A table or view. `kept` and `removed_by` are told where a column is personal."""

    about: str
    columns: Mapping[str, str | Personal]
    kept: str = ""
    removed_by: str = ""

    @property
    def personal(self) -> dict[str, Personal]:
        return {name: about for name, about in self.columns.items() if isinstance(about, Personal)}


ORGANIZATION = "The organization that the account belongs to."
OA = "The LINE official account (`line_oa.id`)."
LINE_ID = Personal("The LINE user id, `U` and 32 hexadecimal digits; different for each LINE provider.")
QUEUE = "The stream that the message came from."
MESSAGE = "The producer's `message_id`, or else the id of the entry."
MADE = "When the row was made."
CHANGED = "When the row was last changed."

TABLES: Mapping[str, Described] = {
    "activity_events": Described(
        "Every interaction event, append-only. Written by ingest; read by the fold, the maintenance of"
        " months and offline training, never to serve a request. Without a unique key, foreign key or"
        " trigger: nothing may slow a write down.",
        {
            "id": "Numbers the rows; not without gaps.",
            "user_id": Personal("Who acted: the `sub` of the token."),
            "verb": Personal("What was done; see [logging](logging.md)."),
            "object_type": Personal("What kind of object it was done to."),
            "object_id": Personal("Which object; where the type is `user`, a person."),
            "surface": Personal("Where in the app, as the client names it."),
            "context": Personal("What the client adds: a JSON object of at most 8 KiB."),
            "created_at": Personal("When, by PostgreSQL's clock. Chooses the month."),
        },
        kept="until its month is dropped: RETENTION_DAYS (30) after the month's end",
        removed_by="the hourly maintenance of months; erasure of the user",
    ),
    "interaction_edges": Described(
        "A row for each actor, kind of affinity and target: the sum of all events that ever went into it."
        " Read by the ranker through the primary key. Half of each page stays free, so that a fold's updates"
        " need no new index entries (HOT).",
        {
            "actor_id": Personal("Whose affinity: `activity_events.user_id`."),
            "edge_type": Personal("Which kind of affinity; `dismissed` is a negative one."),
            "target_type": Personal("`activity_events.object_type`."),
            "target_id": Personal("`activity_events.object_id`; where the type is `user`, a person."),
            "weight": Personal("The sum of the verbs' weights, not decayed."),
            "event_count": Personal("How many events."),
            "first_at": Personal("The oldest of them."),
            "last_at": Personal("The newest of them; decay counts from here when an edge is read."),
        },
        kept="for as long as nobody erases the user: edges outlive the events",
        removed_by="erasure of the user, as actor and as target",
    ),
    "activity_rollup_state": Described(
        "How far the fold has come. Its one row is also the fold's lock.",
        {
            "name": "`interaction_edges`.",
            "watermark": "Every event stamped at or before it is folded, or was reported late.",
            "updated_at": CHANGED,
        },
    ),
    "activity_rollup_slice": Described(
        "What each slice of the fold folded: the ground on which conservation is checked. Slices of dropped"
        " months are added up to one a month.",
        {
            "name": "`interaction_edges`.",
            "lower": "The slice's start, exclusive.",
            "upper": "Its end, inclusive.",
            "events": "How many events it folded.",
            "edges": "How many edges it touched.",
            "folded_at": "When.",
        },
    ),
    "idempotency_key": Described(
        "Which requests with an `Idempotency-Key` were answered.",
        {
            "user_id": Personal("The `sub` of the token."),
            "key": Personal("The key that the client chose."),
            "accepted": "How many events the first request stored.",
            "created_at": Personal("When; after 24 hours the key is free again."),
        },
        kept="24 hours, then until the next housekeeping, which is hourly",
        removed_by="housekeeping; erasure of the user",
    ),
    "erasure": Described(
        "Requests to forget somebody, and the record that it was done. Names whom only while it is pending.",
        {
            "id": "Numbers the requests.",
            "kind": "`user` of the log, `line_user` of an account, or a whole `line_oa`.",
            "subject": Personal("Whom: the user's id or the LINE id; cleared when it is done."),
            "line_oa_id": OA + " Cleared when it is done.",
            "requested_at": "When it was asked for.",
            "finished_at": "When nothing was left; null while it is pending.",
            "counts": "How much was removed where, in numbers.",
        },
        kept="the name until the erasure is done; the record without it for good",
        removed_by="the erasure itself",
    ),
    "line_oa": Described(
        "LINE official accounts.",
        {
            "id": "The account's number, which payloads call `lineOaId`.",
            "organization_id": "Which organization it belongs to.",
            "hash": "Its folder in the bucket: `private/<hash>/`.",
            "channel_access_token": "A secret, with which profiles are read. `oa add` sets it.",
            "login_channel_id": "The LINE Login channel beside it.",
        },
    ),
    "line_user": Described(
        "The users of official accounts: profile, audiences, last activity. Keyed by the account first. No"
        " index holds a last_activity_ column, so that updating them is cheap.",
        {
            "id": "Our number of the user, unique within the account.",
            "organization_id": ORGANIZATION,
            "line_oa_id": OA,
            "line_user_id": LINE_ID,
            "display_name": Personal("The name as LINE told it last."),
            "picture_url": Personal("The picture's address; null: none."),
            "status_message": Personal("The status message; null: none."),
            "language": Personal("The language; the last known one where LINE tells none any more."),
            "audience_ids": Personal("The audiences that the user is in (`audience.id`)."),
            "last_activity_type": Personal("What the user did last, as the producer names it."),
            "last_activity_status": Personal("`active` or `inactive`."),
            "last_activity_period": Personal(
                "How long the user had been quiet before: `first`, `within_1_day`, `within_7_days`,"
                " `within_30_days`, `within_90_days` or `over_90_days`."
            ),
            "last_activity_date": Personal("When: the time at which the message was queued."),
            "profile_fetched_at": Personal("When LINE was last asked; fresh for PROFILE_FRESH_HOURS."),
            "created_at": Personal(MADE),
            "updated_at": Personal(CHANGED),
        },
        kept="for as long as nobody erases the user",
        removed_by="erasure of the LINE user or of the whole account",
    ),
    "line_user_engagement": Described(
        "A view for segmentation: `line_user` with how long each user has been quiet.",
        {
            "id": "`line_user.id`.",
            "organization_id": ORGANIZATION,
            "line_oa_id": OA,
            "line_user_id": LINE_ID,
            "last_activity_type": Personal("As in `line_user`."),
            "last_activity_status": Personal("As in `line_user`."),
            "last_activity_period": Personal("As in `line_user`."),
            "last_activity_date": Personal("As in `line_user`."),
            "quiet_for": Personal("Since the last activity, never negative; null: never active."),
            "inactive_days": Personal("The same in whole days."),
            "never_active": Personal("Whether there was no activity yet."),
        },
        kept="it stores nothing: see `line_user`",
        removed_by="see `line_user`",
    ),
    "audience": Described(
        "Target groups. The CMS makes the row; the platform keeps `info` and `deleted_at`.",
        {
            "id": "The audience's number, which payloads call `audienceId`.",
            "organization_id": ORGANIZATION,
            "line_oa_id": OA,
            "name": "What people call it.",
            "info": "Statistics of the last command and `filePath`, the CSV that the multicast reads. Keys of"
            " others are left alone.",
            "deleted_at": "When it was deleted; later commands on it do nothing.",
            "created_at": MADE,
            "updated_at": CHANGED,
        },
    ),
    "audience_import": Described(
        "The history of commands on audiences, one row a message.",
        {
            "id": "Numbers the commands.",
            "audience_id": "The audience.",
            "command": "`create`, `update`, `delete`, `mookept_add` or `mookept_remove`.",
            "queue": QUEUE,
            "message_id": MESSAGE,
            "status": "`running`, `done`, `partial`, `failed` or `skipped`.",
            "reason": "Why it is not done; null when it is. See"
            " [reasons](operations.md#why-a-message-was-given-up).",
            "stats": "Counts, and while it runs how far it is.",
            "source_path": "The uploaded file.",
            "result_path": "The CSV of all members.",
            "rejects_path": "The CSV of lines that led to no member.",
            "run_id": "Dagster's run.",
            "started_at": "When the first attempt began.",
            "finished_at": "When it ended.",
        },
    ),
    "audience_change": Described(
        "The stored plan of a command under way: exactly who is added and removed. Empty otherwise.",
        {
            "import_id": "`audience_import.id`.",
            "user_id": Personal("`line_user.id`."),
            "change": Personal("`added` or `removed`."),
        },
        kept="until the command ends",
        removed_by="the command's last step; erasure of the LINE user or of the whole account",
    ),
    "processed_message": Described(
        "Messages that are done, so that a repeated one does nothing.",
        {"queue": QUEUE, "message_id": MESSAGE, "processed_at": "When. Forgotten after MESSAGE_DAYS."},
    ),
    "message_attempt": Described(
        "How often each message was tried.",
        {
            "queue": QUEUE,
            "message_id": MESSAGE,
            "attempts": "Counted as each attempt begins.",
            "last_error": "What was wrong with the last one, without personal data.",
            "last_attempt_at": "When it began.",
            "heartbeat_at": "The worker's last sign of life; after two minutes without, it counts as dead.",
        },
    ),
    "trigger_rule": Described(
        "Rules that fire for who comes into an audience or leaves it.",
        {
            "id": "Numbers the rules.",
            "organization_id": ORGANIZATION,
            "line_oa_id": OA,
            "kind": "`audience_membership`.",
            "audience_id": "The audience.",
            "on_event": "`added` or `removed`.",
            "conditions": "What must also hold of the user; see"
            " [trigger rules](queues.md#trigger-rules-and-firings).",
            "enabled": "Whether it fires.",
        },
    ),
    "trigger_firing": Described(
        "What rules fired: exactly one row for each rule, user and message. The outbox of the stream"
        " `trigger_firings`.",
        {
            "id": "Numbers the firings; consumers may deduplicate by it.",
            "rule_id": "`trigger_rule.id`.",
            "user_id": Personal("`line_user.id`."),
            "audience_id": Personal("The audience that the user came into or left."),
            "on_event": Personal("`added` or `removed`."),
            "queue": QUEUE,
            "message_id": MESSAGE,
            "fired_at": Personal("When."),
            "published_at": "When it was put on the stream; null: not yet.",
        },
        kept="for as long as nobody erases the user",
        removed_by="erasure of the LINE user or of the whole account",
    ),
}
