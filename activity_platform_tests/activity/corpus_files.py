"""A bucket of the test's own, for files whose keys are always the same."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING

import pytest

from activity_platform.gateways.object_store import ObjectStore, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def bucket_of_its_own(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An empty bucket, which `environment` then names."""
    for name, value in environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    client = _client(environment["S3_ENDPOINT_URL"])
    environment["S3_BUCKET"] = f"corpus-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=environment["S3_BUCKET"])
    return ObjectStore(client, environment["S3_BUCKET"])


@lru_cache
def _client(endpoint_url: str) -> S3Client:
    # One for all tests: making it takes longer than most of them.
    return s3_client(endpoint_url)
