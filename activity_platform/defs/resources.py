"""What the ops, assets and sensors of all domains are given."""

from typing import TYPE_CHECKING, TypeAlias

import dagster as dg

from activity_platform import migrations
from activity_platform.settings import Settings

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource

#: The parameter `settings: SettingsResource` of an asset, op, sensor or schedule.
SettingsResource: TypeAlias = dg.ResourceParam[Settings]


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

    @dg.resource(description="S3 through dagster-aws, at S3_ENDPOINT_URL.")
    def s3(_: dg.InitResourceContext) -> "S3Resource":
        # dagster-aws takes a second to import, which only runs that need it should pay.
        from activity_platform.defs.s3_resource import BoundedS3Resource

        return BoundedS3Resource(endpoint_url=settings.s3_endpoint_url or None)

    return {
        "settings": settings_of_a_current_database,
        "s3": s3,
    }
