"""Audiences as assets: what each command left, told where it ends."""

import dagster as dg
import psycopg

from activity_platform.audience import imports, overview
from activity_platform.audience.messages import Command
from activity_platform.audience.services import MessageResult, Services

GROUP = "audience"
RECENT_IMPORTS = 50

audiences = dg.DynamicPartitionsDefinition(name="audiences")

audience_members = dg.AssetSpec(
    "audience_members",
    group_name=GROUP,
    kinds={"postgres", "s3"},
    partitions_def=audiences,
    description=(
        "Who is in an audience: the rows of line_user that hold its id, and the CSV that the multicast reads."
        " One partition an audience, which goes with it."
    ),
)
audience_imports = dg.AssetSpec(
    "audience_imports",
    group_name=GROUP,
    kinds={"postgres"},
    description="The history of commands on audiences, one row a message. Shows the last fifty.",
)


def show(context: dg.OpExecutionContext, services: Services, result: MessageResult) -> None:
    """Shows what became of the message. Raises `dg.Failure` if the attempt failed."""
    context.log.info("%s %s: %s", result.queue, result.entry_id, result.status)
    if result.status in ("repeated", "gone"):
        return
    failed = result.status in ("failed", "waiting")
    with services.connect() as connection:
        history = _history(connection)
        if failed:
            # What is logged by a step that then fails is lost.
            context.instance.report_runless_asset_event(history)
        else:
            context.log_event(history)
            _show_members(context, services, connection, result)
    if failed:
        # Without the error itself: Dagster would store its text, which may quote a row.
        raise dg.Failure(
            f"{result.reason}: {result.error}",
            metadata={"attempts": result.attempts, "reason": str(result.reason), "status": result.status},
            allow_retries=False,
        ) from None


def _history(connection: psycopg.Connection) -> dg.AssetMaterialization:
    recent = imports.recent_imports(connection, RECENT_IMPORTS)
    records = [dg.TableRecord(_cells(record)) for record in recent]
    return dg.AssetMaterialization(
        asset_key=audience_imports.key,
        metadata={
            "imports": dg.MetadataValue.table(records, schema=_IMPORT_COLUMNS),
            "failed": sum(record.status == "failed" for record in recent),
            "running": sum(record.status == "running" for record in recent),
        },
    )


def _cells(record: imports.ImportRecord) -> dict[str, str | int]:
    counts = {name: int(record.stats.get(name, 0)) for name in ("total", "members", "added", "removed")}
    return {
        "import": record.id,
        "audience": record.audience_id,
        "command": record.command,
        "status": record.status,
        "reason": record.reason or "",
        **counts,
        "started_at": record.started_at.isoformat(timespec="seconds"),
        "finished_at": record.finished_at.isoformat(timespec="seconds") if record.finished_at else "",
    }


_IMPORT_COLUMNS = dg.TableSchema(
    columns=[
        *(dg.TableColumn(name, "int") for name in ("import", "audience")),
        *(dg.TableColumn(name, "string") for name in ("command", "status", "reason")),
        *(dg.TableColumn(name, "int") for name in ("total", "members", "added", "removed")),
        *(dg.TableColumn(name, "string") for name in ("started_at", "finished_at")),
    ]
)


def _show_members(
    context: dg.OpExecutionContext,
    services: Services,
    connection: psycopg.Connection,
    result: MessageResult,
) -> None:
    partition = str(result.audience_id)
    if result.command == Command.DELETE or result.status == "skipped":
        context.instance.delete_dynamic_partition(str(audiences.name), partition)
        return
    context.instance.add_dynamic_partitions(str(audiences.name), [partition])
    numbers = {name: value for name, value in result.stats.items() if isinstance(value, int)}
    context.log_event(
        dg.AssetMaterialization(
            asset_key=audience_members.key,
            partition=partition,
            metadata={
                **numbers,
                "command": str(result.command),
                "status": result.status,
                "sample": ", ".join(overview.sample_members(connection, int(partition))) or "nobody",
                **_links(services, result),
            },
        )
    )


def _links(services: Services, result: MessageResult) -> dict[str, dg.MetadataValue]:
    paths = {"result": result.result_path, "rejects": result.rejects_path}
    return {name: dg.MetadataValue.path(services.storage.uri(path)) for name, path in paths.items() if path}
