"""`conquiet peek`: the messages of a topic or stream, read-only."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.documents import message_document, shown_payload
from conquiet.cli.values import Name, parse_position, shown_time


def peek(
    context: CommandContext,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 10,
    oldest: Annotated[bool, typer.Option("--oldest", help="Oldest first, not newest.")] = False,
    since: Annotated[
        Any, typer.Option("--since", help="This one or later.", metavar="ID|TIME", parser=parse_position)
    ] = None,
    until: Annotated[
        Any, typer.Option("--until", help="This one or before.", metavar="ID|TIME", parser=parse_position)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only with this key.")] = None,
    contains: Annotated[str | None, typer.Option("--contains", help="Only with this text in it.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")] = None,
) -> None:
    """The messages that are there, newest first; delivers none of them.

    Finished ones are there too, until they are trimmed. A search reads 10,000 messages for each page.
    """
    from conquiet.mq import MessageBrowser, MessageQuery

    query = MessageQuery(
        limit=limit, cursor=cursor, oldest_first=oldest, since=since, until=until, key=key, text=contains
    )
    with context.client() as client:
        page = MessageBrowser(client).page(name, query)

    def print_table() -> None:
        rows = [
            (str(one.position), shown_time(one.sent_at_ms), one.key, shown_payload(one))
            for one in page.messages
        ]
        context.output.print_table(("id", "sent (UTC)", "key", "payload"), rows)
        if page.cursor is not None:
            context.output.line(f"More: --cursor {page.cursor}")

    messages = [message_document(one) for one in page.messages]
    context.output.show({"topic": name, "messages": messages, "cursor": page.cursor}, print_table)
