"""The commands that producers put on the four audience queues, and how their payloads are read.

A payload is a JSON object in camelCase; keys that are not named here are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from activity_platform.failures import PermanentFailure
from activity_platform.gateways.queue import (
    BAD_PAYLOAD,
    CREATE_AUDIENCE,
    DELETE_AUDIENCE,
    MOOKEPT_AUDIENCE,
    UPDATE_AUDIENCE,
    Entry,
    PayloadId,
    PayloadText,
    payload_id,
)

MAX_PATH_BYTES = 1024  # S3's limit for a key

#: The queues, in the order in which messages of equal entry ids are worked on.
AUDIENCE_QUEUES = (CREATE_AUDIENCE, UPDATE_AUDIENCE, MOOKEPT_AUDIENCE, DELETE_AUDIENCE)


class Command(StrEnum):
    """What a message asks for. The names are those of `audience_import.command`."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    MOOKEPT_ADD = "mookept_add"
    MOOKEPT_REMOVE = "mookept_remove"

    @property
    def reads_file(self) -> bool:
        return self is not Command.DELETE

    @property
    def asks_line(self) -> bool:
        return self in (Command.CREATE, Command.UPDATE, Command.MOOKEPT_ADD)

    @property
    def replaces(self) -> bool:
        """Whether the file names all members, so that whoever it doesn't name leaves."""
        return self in (Command.CREATE, Command.UPDATE)


class BadPayload(PermanentFailure):
    """The entry is not what its queue carries. The message names the field, never its value."""

    reason = BAD_PAYLOAD


@dataclass(frozen=True, slots=True)
class AudienceMessage:
    """One request to change an audience. `file_path` is a key or `s3://bucket/key`, None for a delete."""

    command: Command
    audience_id: int
    line_oa_id: int
    organization_id: int
    file_path: str | None = None


class _Delete(msgspec.Struct, rename="camel"):
    audience_id: PayloadId
    line_oa_id: PayloadId
    organization_id: PayloadId


class _File(_Delete, rename="camel"):
    file_path: Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]+\Z")]


class _Mookept(_File, rename="camel"):
    action_type: PayloadText


_DECODERS: dict[str, msgspec.json.Decoder[_Delete]] = {
    CREATE_AUDIENCE: msgspec.json.Decoder(_File),
    UPDATE_AUDIENCE: msgspec.json.Decoder(_File),
    MOOKEPT_AUDIENCE: msgspec.json.Decoder(_Mookept),
    DELETE_AUDIENCE: msgspec.json.Decoder(_Delete),
}
_COMMANDS = {
    CREATE_AUDIENCE: Command.CREATE,
    UPDATE_AUDIENCE: Command.UPDATE,
    DELETE_AUDIENCE: Command.DELETE,
}


def decode(entry: Entry) -> AudienceMessage:
    """The message in an entry of one of the four queues. Raises `BadPayload`, and nothing else."""
    if entry.problem:
        raise BadPayload(entry.problem)
    try:
        body = _DECODERS[entry.queue].decode(entry.payload)
        return AudienceMessage(
            command=_command(entry.queue, body),
            audience_id=payload_id(body.audience_id),
            line_oa_id=payload_id(body.line_oa_id),
            organization_id=payload_id(body.organization_id),
            file_path=_path(body.file_path) if isinstance(body, _File) else None,
        )
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise BadPayload(f"the payload is not valid: {error}") from error


def _command(queue: str, body: _Delete) -> Command:
    if isinstance(body, _Mookept):
        return Command.MOOKEPT_ADD if body.action_type == "add" else Command.MOOKEPT_REMOVE
    return _COMMANDS[queue]


def _path(path: str) -> str:
    if len(path.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"filePath has more than {MAX_PATH_BYTES} bytes")
    if path.startswith("s3://") and not all(path.removeprefix("s3://").partition("/")):
        raise ValueError("filePath names no bucket and key")
    return path
