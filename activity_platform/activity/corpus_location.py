"""Where the training corpus lies, after the platform's settings."""

from __future__ import annotations

from activity_platform.activity.corpus import Corpus
from activity_platform.gateways.object_store import ObjectStore, s3_client
from activity_platform.settings import Need, Settings


def corpus_of(settings: Settings) -> Corpus:
    """The corpus in S3_BUCKET. Raises `UsageError` when that is not set."""
    settings.check([Need.OBJECTS])
    return Corpus(ObjectStore(s3_client(settings.s3_endpoint_url), settings.s3_bucket))
