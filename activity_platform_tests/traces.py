"""Where a text still stands: in every row, every object and every key of the platform's systems."""

from __future__ import annotations

import gzip
import io
from typing import Any

import psycopg
import pyarrow.parquet as pq
import redis
from psycopg import sql

from activity_platform.gateways.object_store import s3_client
from activity_platform.settings import Settings


def rows_with(connection: psycopg.Connection, text: str) -> dict[str, int]:
    """How many rows of each table and view hold the text in any column."""
    found = {}
    for (name,) in connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p', 'v', 'm')"
    ).fetchall():
        statement = sql.SQL("SELECT count(*) FROM {} AS row WHERE position(%s IN row::text) > 0")
        ((rows,),) = connection.execute(statement.format(sql.Identifier(name)), [text])
        if rows:
            found[name] = rows
    return found


def objects_with(settings: Settings, text: str, prefix: str = "") -> list[str]:
    """The objects of the bucket whose name or content, unpacked, holds the text."""
    client = s3_client(settings.s3_endpoint_url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=settings.s3_bucket, Prefix=prefix)
    keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
    return [key for key in keys if text in key or text in _content(client, settings.s3_bucket, key)]


def keys_with(redis_url: str, text: str) -> list[str]:
    """The keys of Redis whose name or value holds the text."""
    with redis.Redis.from_url(redis_url) as client:
        return [
            key.decode(errors="replace")
            for key in client.scan_iter(count=1_000)
            if text.encode() in key or text.encode() in repr(_value(client, key)).encode()
        ]


def _content(client: Any, bucket: str, key: str) -> str:
    data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    if data.startswith(b"PAR1"):
        return str(pq.read_table(io.BytesIO(data)).to_pylist())
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    if b"\0" in data:
        return str(data.decode("utf-16", errors="replace"))
    return str(data.decode(errors="replace"))


def _value(client: redis.Redis, key: bytes) -> Any:
    match client.type(key):
        case b"stream":
            return client.xrange(key)
        case b"string":
            return client.get(key)
        case b"hash":
            return client.hgetall(key)
        case other:
            raise AssertionError(f"a key of type {other!r}: read it here, too")
