"""`conquiet streams`: the plain streams of the server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from conquiet.cli.context import CommandContext
from conquiet.errors import TopicError


def list_streams(
    context: CommandContext,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 1_000,
) -> None:
    """Streams that are no topics, found by their keys: length, groups, last entry. Delivers nothing.

    It goes through all keys of the server, for up to ten seconds; `topics list` and `queues` have the others.
    """
    from conquiet.mq import MqAdmin
    from conquiet.operations import plain_streams

    documents: list[dict[str, Any]] = []
    with context.client() as client:
        found, admin = plain_streams(client, limit=limit), MqAdmin(client)
        for name in found.names:
            try:
                stats, groups = admin.topic(name), admin.groups(name)
            except TopicError:
                continue  # deleted since its name was read
            names = [group.group for group in groups]
            documents.append(
                {"name": name, "length": stats.length, "last_id": stats.last_id, "groups": names}
            )

    def print_table() -> None:
        rows = [
            (each["name"], each["length"], each["last_id"], ", ".join(each["groups"]) or "no group")
            for each in documents
        ]
        context.output.print_table(("stream", ">length", "last id", "groups"), rows)
        if not found.is_complete:
            context.output.line("The server has more keys than were looked at: there may be other streams.")

    context.output.show({"streams": documents, "is_complete": found.is_complete}, print_table)
