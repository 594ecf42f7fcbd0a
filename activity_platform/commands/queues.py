"""Commands on the streams: queue, last-activity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from activity_platform.console import json_option, load_settings, print_json, print_rows, say
from activity_platform.failures import PermanentFailure
from activity_platform.settings import Need

if TYPE_CHECKING:
    from activity_platform.gateways.queue import Queues


@click.group()
def queue() -> None:
    """Look into the queues and their dead letters, put messages in and back."""


def _queues() -> Queues:
    from activity_platform.gateways.queue import Queues, connect

    return Queues(connect(load_settings(Need.REDIS).redis_url))


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("payload", metavar="JSON")
def enqueue(name: str, payload: str) -> None:
    """Put a message on a queue; prints its entry id."""
    print_json({"queue": name, "entry_id": _queues().enqueue(name, payload)})


@queue.command()
@json_option
def status(as_json: bool) -> None:
    """Show depth, dead letters and the age of the head, a line a queue."""
    queues = _queues()
    print_rows(queues.status(), ("queue", "depth", "dead", "oldest_seconds"), as_json=as_json)
    policy = queues.maxmemory_policy()
    if policy != "noeviction":
        say(f"maxmemory-policy is {policy}: a full Redis drops messages; set it to noeviction")


@queue.command()
@click.argument("name", metavar="QUEUE")
@json_option
def dead(name: str, as_json: bool) -> None:
    """Show what is buried, and why."""
    columns = ("dead_id", "entry_id", "message_id", "attempts", "reason", "error", "failed_at")
    print_rows(_queues().dead(name), columns, as_json=as_json)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="[ID]...", nargs=-1)
def replay(name: str, ids: tuple[str, ...]) -> None:
    """Put dead letters back on their queue: those named by dead, entry or message id, else all."""
    from activity_platform.audience.attempts import forget_attempts
    from activity_platform.gateways import postgres

    queues = _queues()
    database_url = load_settings(Need.DATABASE).database_url
    with postgres.connect(database_url, application_name="activity-platform queue replay") as connection:
        result = queues.replay(
            name, ids, forget=lambda message_ids: forget_attempts(connection, name, message_ids)
        )
    print_json({"queue": name, "replayed": len(result.message_ids), "message_ids": result.message_ids})
    if result.missing:
        raise PermanentFailure(f"no dead letter of {name} is named {', '.join(result.missing)}")


@click.group(name="last-activity")
def last_activity() -> None:
    """When each LINE user last did something."""


@last_activity.command()
def drain() -> None:
    """Work until the queue is empty; prints one JSON line."""
    from activity_platform.gateways.queue import Queues, connect
    from activity_platform.last_activity.drain import drain as drain_queue

    settings = load_settings(Need.DATABASE, Need.REDIS)
    print_json(drain_queue(settings.database_url, Queues(connect(settings.redis_url))))
