"""`conquiet stats` and `conquiet pending`: looks that change nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.documents import group_document, topic_document
from conquiet.cli.exits import UsageError
from conquiet.cli.output import shown_age, shown_lag
from conquiet.cli.site import GroupOption, Site, command
from conquiet.cli.values import Name, parse_duration

if TYPE_CHECKING:
    from conquiet.mq import MqAdmin
    from conquiet.queue import Client


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "stats")(stats)
    command(app, "pending")(pending)


def stats(
    site: Site,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Topics or plain streams; without any, every topic.", metavar="[NAME]..."),
    ] = None,
    by_partition: Annotated[
        bool, typer.Option("--partitions", help="One line for each partition of each group.")
    ] = False,
) -> None:
    """Length, lag, pending and ages of topics, streams and their groups.

    A lag that neither the server nor a bounded count knows is "unknown" (null in JSON), never 0.
    """
    from conquiet.mq import MqAdmin

    with site.client() as client:
        admin = MqAdmin(client)
        wanted = names or [topic.name for topic in admin.topics()]
        documents = [_look(client, admin, name) for name in wanted]

    def tell() -> None:
        columns = (
            "topic",
            "group",
            ">length",
            ">lag",
            ">pending",
            ">oldest waiting",
            ">oldest pending",
            ">dead letters",
        )
        site.output.table(columns, [row for one in documents for row in _rows(one, by_partition)])

    site.output.show({"topics": documents}, tell)


def _look(client: Client, admin: MqAdmin, name: str) -> dict[str, Any]:
    from conquiet.mq import DeadLetters, Topics

    return {
        **topic_document(admin.topic(name)),
        "dead_letters": DeadLetters(Topics(client).open(name)).count(),
        "groups": [group_document(group) for group in admin.groups(name)],
    }


def _rows(topic: dict[str, Any], by_partition: bool) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for group in topic["groups"]:
        parts = group["partitions"] if by_partition else [{**group, "length": topic["length"]}]
        for part in parts:
            label = f"{topic['name']} p{part['partition']}" if by_partition else topic["name"]
            ages = (part["oldest_undelivered_age_ms"], part["oldest_pending_age_ms"])
            figures = (part["length"], shown_lag(part["lag"]), part["pending"], *map(shown_age, ages))
            rows.append((label, group["group"], *figures, topic["dead_letters"]))
    empty = (topic["name"], "no group", topic["length"], None, None, None, None, topic["dead_letters"])
    return rows or [empty]


def pending(
    site: Site,
    name: Name,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.")] = 50,
    sort: Annotated[str, typer.Option("--sort", help="idle, deliveries or id.")] = "idle",
    min_idle: Annotated[
        str | None, typer.Option("--min-idle", help="Untouched for so long.", metavar="DURATION")
    ] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")] = None,
) -> None:
    """What a group was given and has not settled: who holds it, since when, how often delivered."""
    from conquiet.mq import MqAdmin

    if sort not in ("idle", "deliveries", "id"):
        raise UsageError(f"--sort must be idle, deliveries or id, got {sort!r}.")
    with site.client() as client:
        page = MqAdmin(client).pending(
            name,
            site.group(group),
            limit=limit,
            cursor=cursor,
            sort=sort,  # type: ignore[arg-type]  # one of the three
            min_idle_ms=parse_duration(min_idle) if min_idle else 0,
        )

    def tell() -> None:
        rows = [
            (entry.id, entry.partition, entry.consumer, shown_age(entry.idle_ms), entry.deliveries)
            for entry in page.entries
        ]
        site.output.table(("id", ">partition", "consumer", ">idle", ">deliveries"), rows)
        if page.cursor is not None:
            site.output.say(f"More: --cursor {page.cursor}")
        if not page.is_complete:
            site.output.say("Only 10,000 entries were sorted; --sort id shows all, page by page.")

    document = {
        "topic": name,
        "group": site.group(group),
        "entries": [asdict(entry) for entry in page.entries],
        "cursor": page.cursor,
        "is_complete": page.is_complete,
    }
    site.output.show(document, tell)
