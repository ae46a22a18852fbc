"""`conquiet consumers`: which consumers a group knows; and prune those that have ended."""

from __future__ import annotations

from dataclasses import asdict

from conquiet.cli.context import CommandContext, DryRunOption, GroupOption, YesOption
from conquiet.cli.values import Name, shown_age


def list_consumers(context: CommandContext, name: Name, group: GroupOption = None) -> None:
    """Every consumer of a group, what it has pending, and when it was last active."""
    from conquiet.errors import TopicError
    from conquiet.operations import topic_facts

    wanted = context.group(group)
    with context.client() as client:
        found = next((each for each in topic_facts(client, name).groups if each.name == wanted), None)
    if found is None:
        raise TopicError(name, f"has no group {wanted!r}")
    consumers = [asdict(consumer) | {"is_live": consumer.name in found.live} for consumer in found.consumers]

    def print_table() -> None:
        rows = [
            (each["name"], each["pending"], shown_age(each["idle_ms"]), "yes" if each["is_live"] else None)
            for each in consumers
        ]
        context.output.print_table(("consumer", ">pending", ">idle", "alive"), rows)

    context.output.show({"topic": name, "group": wanted, "consumers": consumers}, print_table)


def prune_consumers(
    context: CommandContext,
    name: Name,
    group: GroupOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Forget consumers that have nothing pending and are not alive."""
    from conquiet.mq import MqAdmin

    wanted = context.group(group)
    with context.client() as client:
        pruned = context.confirmed(
            lambda is_dry_run: MqAdmin(client).prune_consumers(name, wanted, dry_run=is_dry_run),
            lambda pruned: f"Forget {len(pruned):,} consumers of {name}/{wanted}?",
            yes=yes,
            dry_run=dry_run,
        )
    document = {
        "topic": name,
        "group": wanted,
        "pruned": [asdict(consumer) for consumer in pruned],
        "is_dry_run": dry_run,
    }
    names = sorted({consumer.name for consumer in pruned})
    verb = "Would forget" if dry_run else "Forgot"
    text = f"{verb} {len(names):,} consumers" + (f": {', '.join(names)}" if names else "")
    context.output.show(document, text)
