"""Commands that run the embedded stack: services, dev, demo."""

from __future__ import annotations

from pathlib import Path

import click

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".local/stack"),
    show_default=True,
    help="Where the stack keeps its data; it survives a restart.",
)


@click.command()
@data_dir_option
@click.option("--env-file", type=click.Path(path_type=Path), help="Gets KEY=value lines once all are ready.")
def services(data_dir: Path, env_file: Path | None) -> None:
    """Run PostgreSQL, Valkey, S3 and a LINE simulator until Ctrl-C."""
    from activity_platform.local.run import run_services

    run_services(data_dir, env_file)


@click.command()
@data_dir_option
def dev(data_dir: Path) -> None:
    """Run services, ingest, Dagster's webserver and daemon in this terminal."""
    from activity_platform.local.run import run_dev

    run_dev(data_dir)


@click.command()
@data_dir_option
@click.option("--exit", "then_exit", is_flag=True, help="Stop once every path delivered; else go on running.")
def demo(data_dir: Path, then_exit: bool) -> None:
    """Run `dev` and send real traffic through every path."""
    from activity_platform.local.run import run_demo

    run_demo(data_dir, then_exit=then_exit)
