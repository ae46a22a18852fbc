"""`conquiet groups`: list, reset, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from conquiet.cli.documents import group_document
from conquiet.cli.output import shown_age, shown_lag
from conquiet.cli.site import DryRunOption, Site, YesOption, command
from conquiet.cli.values import Name, parse_place

_Group = Annotated[str, typer.Argument(help="The consumer group.", metavar="GROUP")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    groups = typer.Typer(help="Consumer groups of a topic or stream.", no_args_is_help=True)
    app.add_typer(groups, name="groups")
    for name, function in (("list", list_all), ("reset", reset), ("delete", delete)):
        command(groups, name)(function)


def list_all(site: Site, name: Name) -> None:
    """The groups of a topic or stream, who owns which partition, and who is alive."""
    from conquiet.mq import MqAdmin

    with site.client() as client:
        admin = MqAdmin(client)
        documents = []
        for group in admin.groups(name):
            owners = asdict(admin.owners(name, group.group))
            documents.append(
                group_document(group) | {"owners": owners["partitions"], "members": owners["members"]}
            )

    def tell() -> None:
        columns = ("group", ">lag", ">pending", ">oldest pending", ">consumers", ">alive", "owners")
        site.output.table(columns, [_row(one) for one in documents])

    site.output.show({"topic": name, "groups": documents}, tell)


def _row(group: dict[str, Any]) -> tuple[Any, ...]:
    owners = ", ".join(f"{one['partition']}: {one['owner']}" for one in group["owners"] if one["owner"])
    figures = (shown_lag(group["lag"]), group["pending"], shown_age(group["oldest_pending_age_ms"]))
    return (group["group"], *figures, len(group["consumers"]), len(group["members"]), owners or None)


def reset(
    site: Site,
    name: Name,
    group: _Group,
    to: Annotated[
        str, typer.Option("--to", help="start, end, an entry id, or a time (2026-08-22T10:00, UTC).")
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let a group go on from another place; what is pending stays pending."""
    from conquiet.mq import MqAdmin

    place = parse_place(to)
    with site.client() as client:
        admin = MqAdmin(client)
        resets = admin.reset_group(name, group, place, dry_run=True)
        if not dry_run:
            site.output.confirm(f"Reset group {group!r} of {name!r} to {to}: {_told(resets)}.", is_yes=yes)
            resets = admin.reset_group(name, group, place, dry_run=False)
    document = {
        "topic": name,
        "group": group,
        "partitions": [asdict(one) for one in resets],
        "is_dry_run": dry_run,
    }
    verb = "Would reset" if dry_run else "Reset"
    site.output.show(document, lambda: site.output.say(f"{verb} {name}/{group}: {_told(resets)}."))


def _told(resets: tuple[Any, ...]) -> str:
    def total(field: str) -> str:
        figures = [getattr(one, field) for one in resets]
        return "very many" if None in figures else f"{sum(figures):,}"

    return f"{total('delivered_again')} messages given once more, {total('skipped')} never given"


def delete(
    site: Site,
    name: Name,
    group: _Group,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also with live consumers, or pending messages that nobody will get."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a group with its leases and retries; pending messages are lost to it, so that needs --force."""
    from conquiet.errors import TopicError
    from conquiet.mq import MqAdmin

    with site.client() as client:
        admin = MqAdmin(client)
        found = next((one for one in admin.groups(name) if one.group == group), None)
        if found is None:
            raise TopicError(name, f"has no group {group!r}")
        if not dry_run:
            site.output.confirm(f"Delete group {group!r} of {name!r}, {found.pending:,} pending?", is_yes=yes)
            admin.delete_group(name, group, force=force)
    document = {"topic": name, "group": group, "pending": found.pending, "is_dry_run": dry_run}
    verb = "Would delete" if dry_run else "Deleted"
    site.output.show(document, lambda: site.output.say(f"{verb} {name}/{group}, {found.pending:,} pending."))
