"""`conquiet consumers`: who is known to a group; and prune those that are gone."""

from __future__ import annotations

from dataclasses import asdict

import typer

from conquiet.cli.output import shown_age
from conquiet.cli.site import DryRunOption, GroupOption, Site, YesOption, command
from conquiet.cli.values import Name


def register(app: typer.Typer) -> None:
    """Add the commands."""
    consumers = typer.Typer(help="Consumers that a group knows.", no_args_is_help=True)
    app.add_typer(consumers, name="consumers")
    command(consumers, "list")(list_all)
    command(consumers, "prune")(prune)


def list_all(site: Site, name: Name, group: GroupOption = None) -> None:
    """Every consumer of a group, what it holds, and when it was last heard."""
    from conquiet.operations import look_at_topic

    wanted = site.group(group)
    with site.client() as client:
        groups = [one for one in look_at_topic(client, name).groups if one.name == wanted]
    if not groups:
        from conquiet.errors import TopicError

        raise TopicError(name, f"has no group {wanted!r}")
    found = [asdict(one) | {"is_live": one.name in groups[0].live} for one in groups[0].consumers]

    def tell() -> None:
        rows = [
            (one["name"], one["pending"], shown_age(one["idle_ms"]), "yes" if one["is_live"] else None)
            for one in found
        ]
        site.output.table(("consumer", ">pending", ">idle", "alive"), rows)

    site.output.show({"topic": name, "group": wanted, "consumers": found}, tell)


def prune(
    site: Site, name: Name, group: GroupOption = None, yes: YesOption = False, dry_run: DryRunOption = False
) -> None:
    """Forget consumers that hold nothing and are not alive; one that holds messages is never removed."""
    from conquiet.mq import MqAdmin

    wanted = site.group(group)
    with site.client() as client:
        admin = MqAdmin(client)
        pruned = admin.prune_consumers(name, wanted, dry_run=True)
        if not dry_run:
            site.output.confirm(f"Forget {len(pruned):,} consumers of {name}/{wanted}?", is_yes=yes)
            pruned = admin.prune_consumers(name, wanted)
    document = {
        "topic": name,
        "group": wanted,
        "pruned": [asdict(one) for one in pruned],
        "is_dry_run": dry_run,
    }
    verb = "Would forget" if dry_run else "Forgot"
    names = sorted({one.name for one in pruned})
    told = f"{verb} {len(names):,} consumers" + (f": {', '.join(names)}" if names else "")
    site.output.show(document, lambda: site.output.say(told))
