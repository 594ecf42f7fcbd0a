"""The bucket: whether this process may write, read and delete."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from botocore.exceptions import BotoCoreError, ClientError

from activity_platform.doctor.finding import Finding, ok, red
from activity_platform.gateways.object_store import s3_client
from activity_platform.settings import Settings

PREFIX = "private/doctor"

CURES = {
    "NoSuchBucket": "create the bucket, or correct S3_BUCKET",
    "AccessDenied": "let the credentials do s3:{action}Object on the bucket",
    "InvalidAccessKeyId": "correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "correct AWS_SECRET_ACCESS_KEY",
}


def look(settings: Settings) -> Iterator[Finding]:
    """Writes a small object under a name of its own, reads it back, deletes it."""
    client, bucket = s3_client(settings.s3_endpoint_url), settings.s3_bucket
    key, body = f"{PREFIX}/{secrets.token_hex(8)}", secrets.token_bytes(16)

    def read() -> None:
        if client.get_object(Bucket=bucket, Key=key)["Body"].read() != body:
            raise ValueError("other bytes came back than were written")

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("Put", lambda: client.put_object(Bucket=bucket, Key=key, Body=body)),
        ("Get", read),
        ("Delete", lambda: client.delete_object(Bucket=bucket, Key=key)),
    )
    failed = [finding for action, step in steps if (finding := _attempt(action, step))]
    yield from failed[:1] or [ok("s3", "an object was written, read and deleted")]


def _attempt(action: str, step: Callable[[], object]) -> Finding | None:
    try:
        step()
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        cure = CURES.get(code, "see what the storage's documentation says of that code")
        return red("s3", f"{action} was refused ({code})", cure.format(action=action))
    except BotoCoreError as error:
        return red(
            "s3",
            f"{action}: the storage can't be reached ({type(error).__name__})",
            "start it, or correct S3_ENDPOINT_URL and AWS_*",
        )
    except ValueError as error:
        return red("s3", f"{action}: {error}", "see whether something rewrites objects in the bucket")
    return None
