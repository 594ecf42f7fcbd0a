"""What the ops, assets and sensors of all domains are given."""

from typing import TYPE_CHECKING, TypeAlias

import dagster as dg
from dagster_aws.s3 import S3Resource

from activity_platform import migrations
from activity_platform.gateways.object_store import s3_client
from activity_platform.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

#: The parameter `settings: SettingsResource` of an asset, op, sensor or schedule.
SettingsResource: TypeAlias = dg.ResourceParam[Settings]


class BoundedS3Resource(S3Resource):
    """dagster-aws' S3 with the platform's client: its timeouts, and what servers other than AWS need."""

    def get_client(self) -> "S3Client":
        return s3_client(self.endpoint_url or "")


def resources(settings: Settings) -> dict[str, object]:
    """By name. Settings hold secrets; Dagster keeps them in memory and shows none of them.

    A run is given them only if the database is neither behind nor ahead of this release. Definitions load,
    and sensors look, whatever the database is like: they must be seen in the UI to be mended.
    """

    @dg.resource(description="The platform's settings, from the environment of the code server.")
    def settings_of_a_current_database(context: dg.InitResourceContext) -> Settings:
        if context.run is not None and settings.database_url:
            migrations.ensure_current(settings.database_url)
        return settings

    return {
        "settings": settings_of_a_current_database,
        "s3": BoundedS3Resource(endpoint_url=settings.s3_endpoint_url or None),
    }
