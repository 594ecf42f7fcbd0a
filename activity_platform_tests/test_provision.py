"""What servers lack is created once; what they have is left alone; what can't be done is said in a line."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator

import psycopg
import pytest

from activity_platform import provision
from activity_platform.failures import PermanentFailure, TransientFailure
from activity_platform.gateways.object_store import s3_client
from activity_platform.local.server import free_port
from activity_platform.local.services import Stack
from activity_platform.provision import Provisioned
from activity_platform.settings import Settings


@pytest.fixture
def unprovisioned(stack: Stack, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings that name a database with an awkward name and a bucket, neither of which exists."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, stack.environment[name])
    yield dataclasses.replace(
        settings,
        dagster_postgres_url=stack.database_url("dagster-2%20b"),
        s3_bucket=f"provision-{secrets.token_hex(4)}",
    )
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute('DROP DATABASE IF EXISTS "dagster-2 b"')


def test_a_missing_database_and_bucket_are_created_once(unprovisioned: Settings) -> None:
    assert provision.provision(unprovisioned) == Provisioned(database=True, bucket=True)
    assert provision.provision(unprovisioned) == Provisioned(database=False, bucket=False)
    with psycopg.connect(unprovisioned.dagster_postgres_url) as connection:
        assert connection.info.dbname == "dagster-2 b"
    s3_client(unprovisioned.s3_endpoint_url).head_bucket(Bucket=unprovisioned.s3_bucket)


def test_what_is_not_set_is_not_looked_for() -> None:
    assert provision.provision(Settings()) == Provisioned(database=False, bucket=False)


def test_a_role_that_may_not_create_databases_is_told_which_one_is_missing(stack: Stack) -> None:
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as server:
        server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        try:
            url = f"postgresql://guest:guest@127.0.0.1:{stack.postgres.port}/not_there"
            with pytest.raises(PermanentFailure, match=r"\Athe database not_there is missing and .*\Z"):
                provision.ensure_database(url)
        finally:
            server.execute("DROP ROLE guest")


def test_servers_that_are_away_are_worth_another_try(unprovisioned: Settings) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(TransientFailure, match="PostgreSQL can't be reached"):
        provision.ensure_database(f"postgresql://{nobody}/dagster")
    with pytest.raises(TransientFailure, match=r"\Athe object storage can't be reached \(\w+\)\Z"):
        provision.ensure_bucket(unprovisioned.s3_bucket, f"http://{nobody}")


def test_a_refused_bucket_is_named(unprovisioned: Settings) -> None:
    with pytest.raises(PermanentFailure, match=r"\Athe bucket ab can't be created \(InvalidBucketName\)\Z"):
        provision.ensure_bucket("ab", unprovisioned.s3_endpoint_url)
