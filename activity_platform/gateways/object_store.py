"""Files in S3, or in anything that speaks it: read whole up to a size, written in one piece.

A write is one PUT, which S3 carries out wholly or not at all, so that a reader sees the old object or the
new one. No message names a key: it may hold what a person typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from activity_platform.failures import PermanentFailure, TransientFailure

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 30
ATTEMPTS = 4  # of one request; botocore waits up to some seconds between them
PIECE_BYTES = 1024 * 1024
PARTS_IN_MEMORY = 2  # of an upload, 8 MiB each; boto3 reads ten ahead of the network otherwise

_MISSING = ("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404", "NotFound")


class ObjectMissing(TransientFailure):
    """There is no such object, or not yet."""


class ObjectTooLarge(PermanentFailure):
    """The object is larger than the reader takes."""


class StorageUnavailable(TransientFailure):
    """The storage is away, busy, or refuses this client."""


@dataclass(frozen=True)
class Location:
    """Where an object is. The key is taken literally: `+`, `%20` and spaces are just characters."""

    bucket: str
    key: str


def s3_client(endpoint_url: str = "") -> S3Client:
    """A client after the environment's `AWS_*`. Without `endpoint_url` it is AWS's own S3."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint_url or None,
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            # Servers other than AWS seldom know buckets as host names, and some no trailing checksums.
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class ObjectStore:
    """Objects of `bucket`, and of others where a location names one.

    Every method raises `StorageUnavailable` when the storage can't be reached or refuses.
    """

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def locate(self, path: str) -> Location:
        """`path` is a key of the store's bucket or `s3://bucket/key`."""
        if path.startswith("s3://"):
            bucket, _, key = path.removeprefix("s3://").partition("/")
            return Location(bucket, key)
        return Location(self._bucket, path)

    def uri(self, path: str) -> str:
        """`s3://bucket/key`, as people and tools write it."""
        location = self.locate(path)
        return f"s3://{location.bucket}/{location.key}"

    def get(self, path: str, *, most_bytes: int) -> bytes:
        """The whole object. Raises `ObjectMissing`, or `ObjectTooLarge` as soon as the size shows."""
        location = self.locate(path)
        data = bytearray()
        with _failures_named():
            answer = self._client.get_object(Bucket=location.bucket, Key=location.key)
            size = answer["ContentLength"]
            with closing(answer["Body"]) as body:
                for piece in body.iter_chunks(PIECE_BYTES) if size <= most_bytes else ():
                    data += piece
        if max(size, len(data)) > most_bytes:
            raise ObjectTooLarge(f"the file has more than {most_bytes:,} bytes: split it into smaller ones")
        return bytes(data)

    def put(self, path: str, data: bytes, *, content_type: str) -> None:
        """Writes the object, over an older one if there is one."""
        location = self.locate(path)
        with _failures_named():
            self._client.put_object(
                Bucket=location.bucket, Key=location.key, Body=data, ContentType=content_type
            )

    def put_file(self, path: str, file: IO[bytes], *, content_type: str, metadata: dict[str, str]) -> None:
        """Writes a file of any size, in parts where it is large; the object appears with the last of them."""
        location = self.locate(path)
        with _failures_named():
            self._client.upload_fileobj(
                file,
                location.bucket,
                location.key,
                ExtraArgs={"ContentType": content_type, "Metadata": metadata},
                Config=_few_parts_in_memory(),
            )

    def get_file(self, path: str, file: IO[bytes]) -> None:
        """Writes the object to the file, piece by piece. Raises `ObjectMissing`."""
        location = self.locate(path)
        with _failures_named():
            answer = self._client.get_object(Bucket=location.bucket, Key=location.key)
            with closing(answer["Body"]) as body:
                for piece in body.iter_chunks(PIECE_BYTES):
                    file.write(piece)

    def copy(self, source: str, target: str, *, content_type: str, metadata: dict[str, str]) -> None:
        """Copies an object of any size within the storage; the target appears whole."""
        origin, location = self.locate(source), self.locate(target)
        with _failures_named():
            self._client.copy(
                {"Bucket": origin.bucket, "Key": origin.key},
                location.bucket,
                location.key,
                ExtraArgs={"ContentType": content_type, "Metadata": metadata, "MetadataDirective": "REPLACE"},
            )

    def list_folders(self, prefix: str) -> Iterator[str]:
        """What stands in the keys of objects between `prefix` and the next slash, each once, in order."""
        location = self.locate(prefix)
        with _failures_named():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=location.bucket, Prefix=location.key, Delimiter="/"
            )
            for page in pages:
                for folder in page.get("CommonPrefixes", ()):
                    yield folder["Prefix"].removeprefix(location.key).rstrip("/")

    def list_keys(self, prefix: str) -> Iterator[str]:
        """The names of the bucket's objects that begin with `prefix`, in their order."""
        location = self.locate(prefix)
        with _failures_named():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=location.bucket, Prefix=location.key
            )
            for page in pages:
                for found in page.get("Contents", ()):
                    yield found["Key"]

    def find_metadata(self, path: str) -> dict[str, str] | None:
        """What its writer noted on the object; None when there is no such object."""
        location = self.locate(path)
        try:
            with _failures_named():
                return self._client.head_object(Bucket=location.bucket, Key=location.key)["Metadata"]
        except ObjectMissing:
            return None

    def delete(self, path: str) -> None:
        """Deletes the object, if it is there."""
        location = self.locate(path)
        with _failures_named():
            self._client.delete_object(Bucket=location.bucket, Key=location.key)


def _few_parts_in_memory() -> TransferConfig:
    config = TransferConfig(max_concurrency=PARTS_IN_MEMORY)
    config.max_in_memory_upload_chunks = PARTS_IN_MEMORY
    return config


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise ObjectMissing("the file is not in the object storage, or not yet") from error
        raise StorageUnavailable(f"the object storage refused the request ({code})") from error
    except ParamValidationError as error:
        raise ObjectMissing("the path names no bucket or key that can exist") from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise StorageUnavailable(f"the object storage can't be reached ({type(error).__name__})") from error
