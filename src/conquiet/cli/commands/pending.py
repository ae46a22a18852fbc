"""`conquiet pending`: what a group was given and has not settled."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext, GroupOption
from conquiet.cli.exits import UsageError
from conquiet.cli.values import Name, duration_option, shown_age


def pending(
    context: CommandContext,
    name: Name,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
    sort: Annotated[str, typer.Option("--sort", help="idle, deliveries or id.")] = "idle",
    min_idle: Annotated[int | None, duration_option("--min-idle", "Not touched for so long.")] = None,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only at this consumer.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")] = None,
) -> None:
    """What a group was given and has not settled: at which consumer, since when, how often delivered."""
    from conquiet.mq import MqAdmin
    from conquiet.queue.stream import HANDED_BACK_IDLE_MS

    if sort not in ("idle", "deliveries", "id"):
        raise UsageError(f"--sort must be idle, deliveries or id, got {sort!r}.")
    wanted = context.group(group)
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

    def print_table() -> None:
        rows = []
        for entry in page.entries:
            # Handed back, or replayed: no time that passed, but free for the next consumer at once.
            idle = "free" if entry.idle_ms >= HANDED_BACK_IDLE_MS else shown_age(entry.idle_ms)
            rows.append((entry.id, entry.partition, entry.consumer, idle, entry.deliveries))
        context.output.print_table(("id", ">partition", "consumer", ">idle", ">deliveries"), rows)
        if page.cursor is not None:
            context.output.line(f"More: --cursor {page.cursor}")
        if not page.is_complete:
            context.output.line("Only 10,000 entries were sorted; --sort id shows all, page by page.")

    context.output.show({"topic": name, "group": wanted, **asdict(page)}, print_table)
