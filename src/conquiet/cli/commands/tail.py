"""`conquiet tail`: new messages as they are added."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.documents import message_document, shown_payload
from conquiet.cli.values import Name


def tail(
    context: CommandContext,
    name: Name,
    last: Annotated[int, typer.Option("--last", "-n", help="Begin with so many that are there.")] = 10,
) -> None:
    """The last messages, then new ones as they are added, until Ctrl-C; with --json one object a line."""
    from conquiet.cli.signals import Stopping
    from conquiet.mq import MessageBrowser

    with context.client() as client, Stopping() as stopping:
        for one in MessageBrowser(client).tail(name, lambda: stopping.wait(0.2), last=last):
            text = f"{one.position}  {one.key or '-'}  {shown_payload(one)}"
            context.output.show({"topic": name, **message_document(one)}, text)
