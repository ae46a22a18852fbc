"""The command line tool as a whole; each group of commands is a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet import __version__
from conquiet.cli import (
    consumers,
    dead_letters,
    doctor,
    draining,
    enqueueing,
    groups,
    looking,
    metrics,
    server,
    topics,
    trimming,
    watching,
)
from conquiet.cli.failures import ConquietGroup

app = typer.Typer(
    name="conquiet",
    cls=ConquietGroup,
    help="Redis Streams queues where one message is one database transaction.",
    epilog="Exit codes, JSON shapes and settings: docs/cli.md",
    no_args_is_help=True,
    rich_markup_mode="rich",
    # Local variables, passwords among them, must never be printed.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"conquiet {__version__}")
        raise typer.Exit


@app.callback()
def conquiet(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Redis Streams queues where one message is one database transaction."""


for part in (server, enqueueing, draining, looking, topics, groups, dead_letters, trimming, consumers):
    part.register(app)
for part in (watching, metrics, doctor):
    part.register(app)
