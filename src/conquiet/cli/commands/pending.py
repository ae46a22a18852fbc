"""`conquiet pending`: what a group was given and has not settled."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext, GroupOption
from conquiet.cli.documents import message_document, shown_payload
from conquiet.cli.exits import UsageError
from conquiet.cli.values import Name, duration_option, shown_age
from conquiet.errors import TopicError

if TYPE_CHECKING:
    from conquiet.mq import MessageBrowser, StoredMessage
    from conquiet.mq.look.pending import PendingEntry


def pending(
    context: CommandContext,
    name: Name,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
    sort: Annotated[str, typer.Option("--sort", help="idle, deliveries or id.")] = "idle",
    min_idle: Annotated[int | None, duration_option("--min-idle", "Not touched for so long.")] = None,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only at this consumer.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")] = None,
    messages: Annotated[bool, typer.Option("--messages", help="Also what is in them.")] = False,
) -> None:
    """What a group was given and has not settled: at which consumer, since when, how often delivered."""
    from conquiet.mq import MessageBrowser, MqAdmin
    from conquiet.queue.stream import HANDED_BACK_IDLE_MS

    if sort not in ("idle", "deliveries", "id"):
        raise UsageError(f"--sort must be idle, deliveries or id, got {sort!r}.")
    wanted = context.group(group)
    contents: list[StoredMessage | None] = []
    with context.client() as client:
        page = MqAdmin(client).pending(
            name,
            wanted,
            limit=limit,
            cursor=cursor,
            sort=sort,  # type: ignore[arg-type]  # one of the three
            min_idle_ms=min_idle or 0,
            consumer=consumer,
        )
        if messages:
            browser = MessageBrowser(client)
            contents = [_content(browser, name, entry) for entry in page.entries]

    def print_table() -> None:
        rows: list[tuple[object, ...]] = []
        for entry in page.entries:
            # Handed back, or replayed: no time that passed, but free for the next consumer at once.
            idle = "free" if entry.idle_ms >= HANDED_BACK_IDLE_MS else shown_age(entry.idle_ms)
            rows.append((entry.id, entry.partition, entry.consumer, idle, entry.deliveries))
        columns = ["id", ">partition", "consumer", ">idle", ">deliveries"]
        if messages:
            columns += ["key", "payload"]
            rows = [(*row, *_shown(content)) for row, content in zip(rows, contents, strict=True)]
        context.output.print_table(columns, rows)
        if page.cursor is not None:
            context.output.line(f"More: --cursor {page.cursor}")
        if not page.is_complete:
            context.output.line("Only 10,000 entries were sorted; --sort id shows all, page by page.")

    document = {"topic": name, "group": wanted, **asdict(page)}
    for entry, content in zip(document["entries"], contents, strict=False):
        entry["message"] = None if content is None else message_document(content)
    context.output.show(document, print_table)


def _content(browser: MessageBrowser, name: str, entry: PendingEntry) -> StoredMessage | None:
    try:
        return browser.message(name, str(entry.position))
    except TopicError:
        return None  # trimmed or deleted while it was pending


def _shown(content: StoredMessage | None) -> tuple[str | None, str]:
    return (None, "trimmed or deleted") if content is None else (content.key, shown_payload(content))
