"""`conquiet delayed`: messages that wait to be added, list and cancel."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext, YesOption
from conquiet.cli.exits import ExitCode
from conquiet.cli.values import Name, shown_time


def list_delayed(
    context: CommandContext,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
) -> None:
    """Messages that were sent with a delay, and copies that wait for their retry; the next one due first."""
    from conquiet.mq import MqAdmin

    with context.client() as client:
        admin = MqAdmin(client)
        total, messages = admin.topic(name).delayed, admin.delayed(name, limit=limit)

    def print_table() -> None:
        rows = [
            (each.name, shown_time(each.due_at_ms), each.partition, each.group, each.attempt, each.key)
            for each in messages
        ]
        context.output.print_table(("name", "due (UTC)", ">partition", "group", ">attempts", "key"), rows)
        context.output.line(f"{len(rows):,} of {total:,} delayed messages")

    document = {"topic": name, "count": total, "messages": [asdict(each) for each in messages]}
    context.output.show(document, print_table)


def cancel_delayed(
    context: CommandContext,
    name: Name,
    names: Annotated[list[str], typer.Argument(help="Names of delayed messages.", metavar="NAME...")],
    yes: YesOption = False,
) -> int:
    """Delete delayed messages for good; of a copy that waits for its retry, the message is lost to its group.

    The exit code is 1 if one of them was not there, as one that was added meanwhile.
    """
    from conquiet.mq import MqAdmin

    context.output.confirm(f"Delete {len(names):,} delayed messages of {name!r} for good?", is_yes=yes)
    with context.client() as client:
        cancelled = MqAdmin(client).cancel_delayed(name, names)
    context.output.show(
        {"topic": name, "cancelled": cancelled}, f"Deleted {cancelled:,} of {len(names):,} delayed messages."
    )
    return ExitCode.DONE if cancelled == len(set(names)) else ExitCode.FAILED
