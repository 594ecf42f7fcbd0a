"""Creates what outside servers must hold before the programs start: Dagster's database and the bucket.

Run as a script, once per deployment and harmless when repeated:

    python -m activity_platform.provision

It takes DAGSTER_POSTGRES_URL, S3_BUCKET and S3_ENDPOINT_URL from the environment, each only when it is set.
What exists is left as it is, so nothing but reading is asked of servers that somebody else has prepared.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from activity_platform.console import FAILED, print_json, say
from activity_platform.failures import PermanentFailure, PlatformError, TransientFailure
from activity_platform.gateways import postgres
from activity_platform.gateways.object_store import s3_client
from activity_platform.settings import Settings

APPLICATION_NAME = "activity-platform provision"
MAINTENANCE_DATABASE = "postgres"
MISSING_BUCKET = ("404", "NoSuchBucket")
OWN_BUCKET = ("BucketAlreadyOwnedByYou",)  # another process was faster


@dataclass(frozen=True)
class Provisioned:
    """What was created; False for what existed or is not used."""

    database: bool
    bucket: bool


def provision(settings: Settings) -> Provisioned:
    """Creates what is missing. Raises `TransientFailure` or `PermanentFailure` when that can't be done."""
    return Provisioned(
        database=bool(settings.dagster_postgres_url) and ensure_database(settings.dagster_postgres_url),
        bucket=bool(settings.s3_bucket) and ensure_bucket(settings.s3_bucket, settings.s3_endpoint_url),
    )


def ensure_database(database_url: str) -> bool:
    """Whether the database that the URL names had to be created, from the server's database `postgres`."""
    name = str(conninfo_to_dict(database_url).get("dbname", ""))
    try:
        psycopg.connect(database_url, **postgres.CONNECTION_PARAMETERS).close()
        return False
    except psycopg.OperationalError:
        pass  # it is missing, or the server is away: what follows tells
    server_url = make_conninfo(database_url, dbname=MAINTENANCE_DATABASE)
    with postgres.connect(server_url, application_name=APPLICATION_NAME) as connection:
        try:
            # template0: what somebody left in template1 is not Dagster's.
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        except errors.DuplicateDatabase:
            return False
        except errors.InsufficientPrivilege as error:
            raise PermanentFailure(
                f"the database {name} is missing and this role may not create it: create it as its owner"
            ) from error
    return True


def ensure_bucket(name: str, endpoint_url: str) -> bool:
    """Whether the bucket had to be created."""
    client = s3_client(endpoint_url)
    try:
        client.head_bucket(Bucket=name)
        return False
    except ClientError as error:
        if _code(error) not in MISSING_BUCKET:
            raise PermanentFailure(f"the bucket {name} can't be looked at ({_code(error)})") from error
    except BotoCoreError as error:
        raise TransientFailure(f"the object storage can't be reached ({type(error).__name__})") from error
    try:
        client.create_bucket(Bucket=name)
    except ClientError as error:
        if _code(error) not in OWN_BUCKET:
            raise PermanentFailure(f"the bucket {name} can't be created ({_code(error)})") from error
    return True


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def main() -> int:
    try:
        print_json(provision(Settings.load(os.environ)))
    except PlatformError as error:
        say(f"provision: {error}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
