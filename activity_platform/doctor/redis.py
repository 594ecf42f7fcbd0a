"""Redis or Valkey: version, role, what it does when memory or disk is full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from activity_platform.doctor.finding import Finding, ok, red, warn
from activity_platform.gateways import queue
from activity_platform.settings import Settings

OLDEST_REDIS, OLDEST_VALKEY = (7, 0), (8, 0)
MEMORY_SHARE = 0.8


def look(settings: Settings) -> Iterator[Finding]:
    """Everything from one INFO."""
    try:
        with queue.connect(settings.redis_url) as client, queue.outages_named():
            info: Mapping[str, Any] = client.info()
    except queue.QueueAway as error:
        yield red("redis", str(error), _cure_of(error))
        return
    yield _version(info)
    yield from _role(info)
    yield _policy(info)
    yield from _memory(info)
    yield _persistence(info)


def _version(info: Mapping[str, Any]) -> Finding:
    # Valkey calls itself Redis 7.2 for old clients' sake.
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info["redis_version"])
    oldest = OLDEST_VALKEY if name == "Valkey" else OLDEST_REDIS
    if tuple(map(int, version.split(".")[:2])) < oldest:
        return red("redis", f"{name} {version}", "upgrade: Redis 7.0 and Valkey 8 are the oldest supported")
    return ok("redis", f"{name} {version}")


def _role(info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("role") != "master":
        yield red("redis", "a replica, which takes no writes", "point REDIS_URL at the primary")
    if info.get("cluster_enabled"):
        yield red("redis", "a cluster, which keeps the queues apart", "use one primary, with replicas")


def _policy(info: Mapping[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy")
    if policy != "noeviction":
        return red(
            "maxmemory-policy",
            f"{policy}: a full Redis throws queued messages away",
            "set maxmemory-policy noeviction (CONFIG SET, and in redis.conf)",
        )
    return ok("maxmemory-policy", "noeviction")


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    used, most = info.get("used_memory", 0), info.get("maxmemory", 0)
    if most and used > MEMORY_SHARE * most:
        yield warn(
            "redis memory",
            f"{used / most:.0%} of maxmemory is used; when it is full, producers are refused",
            "raise maxmemory, or see with `activity-platform queue status` what grows",
        )


def _persistence(info: Mapping[str, Any]) -> Finding:
    if info.get("rdb_last_bgsave_status") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        return red(
            "redis persistence",
            "Redis could not write to its disk, and refuses writes until it can",
            "free space on its disk; its log names the error",
        )
    if not info.get("aof_enabled"):
        return warn(
            "redis persistence",
            "no append-only file: a restart loses what was queued since the last snapshot",
            "set appendonly yes",
        )
    return ok("redis persistence", "append-only file")


def _cure_of(error: queue.QueueAway) -> str:
    if "uthenticat" in str(error) or "WRONGPASS" in str(error) or "NOAUTH" in str(error):
        return "correct the password in REDIS_URL"
    return "start Redis, or correct host and port in REDIS_URL"
