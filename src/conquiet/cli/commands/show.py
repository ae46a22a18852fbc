"""`conquiet show`: one message, and where it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.documents import message_document
from conquiet.cli.values import Name, shown_age, shown_time


def show(
    context: CommandContext,
    name: Name,
    entry_id: Annotated[str, typer.Argument(help="Its entry id; with @3 of partition 3.", metavar="ID")],
) -> None:
    """One message in full, and where it is in each group: undelivered, pending at a consumer, or done."""
    from conquiet.mq import MessageBrowser

    with context.client() as client:
        browser = MessageBrowser(client)
        message = browser.message(name, entry_id)
        places = browser.places(name, message)

    def print_message() -> None:
        line = context.output.line
        line(f"{'id:':<12}{message.position}")
        line(f"{'sent:':<12}{shown_time(message.sent_at_ms)} UTC")
        if message.key is not None:
            line(f"{'key:':<12}{message.key}")
        if message.headers:
            line(f"{'headers:':<12}{json.dumps(message.headers, ensure_ascii=False)}")
        for place in places:
            where: str = place.state
            if place.entry is not None:
                one = place.entry
                where += f" at {one.consumer} for {shown_age(one.idle_ms)}, {one.deliveries} deliveries"
            line(f"{place.group + ':':<12}{where}")
        if message.problem is not None:
            line(f"malformed:  {message.problem}")
        content = message.fields if message.payload is None else message.payload
        line(json.dumps(content, indent=2, ensure_ascii=False))

    document = {**message_document(message), "groups": [asdict(place) for place in places]}
    context.output.show({"topic": name, **document}, print_message)
