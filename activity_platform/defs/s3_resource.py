"""dagster-aws' S3 resource with the platform's client."""

from typing import TYPE_CHECKING

from dagster_aws.s3 import S3Resource

from activity_platform.gateways.object_store import s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class BoundedS3Resource(S3Resource):
    """S3 with the platform's timeouts, and with what servers other than AWS need."""

    def get_client(self) -> "S3Client":
        return s3_client(self.endpoint_url or "")
