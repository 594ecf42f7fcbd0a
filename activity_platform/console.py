"""How the command line finds its settings, prints results and fails.

Results go to standard output: as a table on a terminal, as JSON lines when piped or asked for. Everything
else goes to standard error. A failure is one line; exit status 1 failed, 2 wrong use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table

from activity_platform.failures import PlatformError, UsageError
from activity_platform.local import registry
from activity_platform.settings import Need, Settings

FAILED = 1
WRONG_USE = 2

json_option = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of a table.")


def say(text: str) -> None:
    """A line for the person at the terminal."""
    click.echo(text, err=True)


def load_settings(*needs: Need, any_schema: bool = False) -> Settings:
    """The settings in the environment, completed from the running stack when one of `needs` is missing.

    What is set wins over the stack's. The completed environment becomes this process's own, since the AWS
    client reads its variables there. With the database among the needs, raises `PermanentFailure` when that
    is behind or ahead of this release, unless `any_schema` will do.
    """
    settings = _find_settings(needs)
    if Need.DATABASE in needs and not any_schema:
        from activity_platform import migrations

        migrations.ensure_current(settings.database_url)
    return settings


def _find_settings(needs: Sequence[Need]) -> Settings:
    try:
        return Settings.load(os.environ, needs=needs)
    except UsageError:
        stacks = registry.find()
        if not stacks:
            raise
    chosen, others = stacks[0], len(stacks) - 1
    say(f"using the stack on {chosen.directory}" + (f" (started last; {others} more run)" if others else ""))
    os.environ.update({name: text for name, text in chosen.environment.items() if not os.environ.get(name)})
    return Settings.load(os.environ, needs=needs)


def print_json(result: Any) -> None:
    """One line of JSON: a dataclass, a mapping or a value."""
    click.echo(msgspec.json.encode(result).decode())


def print_rows(
    rows: Iterable[Any], columns: Sequence[str], *, as_json: bool, aside: Sequence[str] = ()
) -> None:
    """Rows (dataclasses) with those columns: a table on a terminal, else a JSON line each.

    Columns that stand `aside` are left out of the table.
    """
    if as_json or not sys.stdout.isatty():
        for row in rows:
            print_json({column: getattr(row, column) for column in columns})
        return
    shown = [column for column in columns if column not in aside]
    table = Table(*(Column(column, overflow="fold") for column in shown), box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(_cell(getattr(row, column)) for column in shown))
    Console().print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.4g}"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%MZ}"
    return str(value)


class Commands(click.Group):
    """A group of commands whose failures end as one line on standard error."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            say(error.format_message())
            sys.exit(WRONG_USE)
        except click.ClickException as error:
            sys.exit(_fail(_one_line(error), WRONG_USE))
        except click.Abort:
            sys.exit(_fail("stopped", 128 + 2))
        except UsageError as error:
            sys.exit(_fail(str(error), WRONG_USE))
        except PlatformError as error:
            sys.exit(_fail(str(error), FAILED))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _fail(text: str, status: int) -> int:
    say(f"activity-platform: {text}")
    return status


def _one_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return error.format_message() + hint
