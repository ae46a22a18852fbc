"""`conquiet groups`: list, create, reset, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.documents import group_document
from conquiet.cli.values import Name, parse_position, shown_age, shown_lag

_Group = Annotated[str, typer.Argument(help="The consumer group.", metavar="GROUP")]


def list_groups(context: CommandContext, name: Name) -> None:
    """The groups of a topic or stream, which consumers own which partition, and which are alive."""
    from conquiet.mq import MqAdmin

    with context.client() as client:
        admin = MqAdmin(client)
        documents = []
        for group in admin.groups(name):
            owners = asdict(admin.owners(name, group.group))
            documents.append(
                group_document(group) | {"owners": owners["partitions"], "members": owners["members"]}
            )

    def print_table() -> None:
        rows = []
        for each in documents:
            owned = [f"{lease['partition']}: {lease['owner']}" for lease in each["owners"] if lease["owner"]]
            figures = (shown_lag(each["lag"]), each["pending"], shown_age(each["oldest_pending_age_ms"]))
            counts = (len(each["consumers"]), len(each["members"]))
            rows.append((each["group"], *figures, *counts, ", ".join(owned) or None))
        columns = ("group", ">lag", ">pending", ">oldest pending", ">consumers", ">alive", "owners")
        context.output.print_table(columns, rows)

    context.output.show({"topic": name, "groups": documents}, print_table)


def create_group(
    context: CommandContext,
    name: Name,
    group: _Group,
    at: Annotated[
        str, typer.Option("--at", help="start, end, an entry id, or a time (2026-08-22T10:00, UTC).")
    ] = "start",
) -> None:
    """Create a group, so that its first consumer begins there; one that is there is left as it is."""
    from conquiet.mq import MqAdmin

    with context.client() as client:
        is_created = MqAdmin(client).create_group(name, group, parse_position(at))
    document = {"topic": name, "group": group, "at": at, "is_created": is_created}
    text = f"Created group {group!r} of {name!r} at {at}."
    context.output.show(document, text if is_created else f"{name!r} has its group {group!r} already.")


def reset_group(
    context: CommandContext,
    name: Name,
    group: _Group,
    to: Annotated[
        str, typer.Option("--to", help="start, end, an entry id, or a time (2026-08-22T10:00, UTC).")
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let a group go on from another position; what is pending stays pending."""
    from conquiet.mq import MqAdmin

    position = parse_position(to)
    with context.client() as client:
        admin = MqAdmin(client)
        resets = context.confirmed(
            lambda is_dry_run: admin.reset_group(name, group, position, dry_run=is_dry_run),
            lambda resets: f"Reset group {group!r} of {name!r} to {to}: {_effect(resets)}.",
            yes=yes,
            dry_run=dry_run,
        )
    document = {
        "topic": name,
        "group": group,
        "partitions": [asdict(partition) for partition in resets],
        "is_dry_run": dry_run,
    }
    context.output.show(
        document, f"{'Would reset' if dry_run else 'Reset'} {name}/{group}: {_effect(resets)}."
    )


def _effect(resets: tuple[Any, ...]) -> str:
    def total(field: str) -> str:
        figures = [getattr(partition, field) for partition in resets]
        return "very many" if None in figures else f"{sum(figures):,}"

    return f"{total('delivered_again')} messages given once more, {total('skipped')} never given"


def delete_group(
    context: CommandContext,
    name: Name,
    group: _Group,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also with live consumers, or with pending messages: they are lost."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a group with its leases and retries; pending messages are lost to it, so that needs --force."""
    from conquiet.errors import TopicError
    from conquiet.mq import MqAdmin

    with context.client() as client:
        admin = MqAdmin(client)
        found = next((each for each in admin.groups(name) if each.group == group), None)
        if found is None:
            raise TopicError(name, f"has no group {group!r}")
        pending = f"{found.pending:,} pending"
        if not dry_run:
            context.output.confirm(f"Delete group {group!r} of {name!r}, {pending}?", is_yes=yes)
            admin.delete_group(name, group, force=force)
    document = {"topic": name, "group": group, "pending": found.pending, "is_dry_run": dry_run}
    context.output.show(document, f"{'Would delete' if dry_run else 'Deleted'} {name}/{group}, {pending}.")
