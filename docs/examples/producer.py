"""Puts two messages on their queues. REDIS_URL says where."""

import json
import os
import uuid

import redis


def enqueue(client: redis.Redis, queue: str, message_id: str, payload: dict[str, object]) -> str:
    """Sends one message, returns the id of its entry. After an error, repeat it with the same message_id."""
    entry_id = client.xadd(queue, {"payload": json.dumps(payload), "message_id": message_id})
    return entry_id.decode()


with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
    print(
        enqueue(
            client,
            "line_user_last_activity",
            str(uuid.uuid4()),
            {
                "lineUserId": "U0123456789abcdef0123456789abcdef",
                "lineOaId": 1,
                "organizationId": 1,
                "activityType": "message",
                "activityStatus": "active",
            },
        )
    )
    print(
        enqueue(
            client,
            "create_audience",
            str(uuid.uuid4()),
            {"audienceId": 7, "lineOaId": 1, "organizationId": 1, "filePath": "up/7.csv"},
        )
    )
