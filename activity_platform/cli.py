"""The command line, `activity-platform …`: all commands under one roof."""

from __future__ import annotations

import click

from activity_platform import __version__
from activity_platform.commands import activity, audience, corpus, erase, operation, queues, stack
from activity_platform.console import Commands


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Interaction events, affinity edges, LINE audiences and last activity."""


for command in (
    *(stack.services, stack.dev, stack.demo),
    *(operation.migrate, operation.doctor, operation.ingest, operation.token),
    *(activity.rollup, activity.edges, activity.partitions),
    *(corpus.export_corpus, corpus.audit_edges),
    *(queues.queue, queues.last_activity),
    *(audience.audience, audience.oa, audience.triggers),
    erase.erase,
):
    main.add_command(command)
