"""`conquiet trim`: old entries that every group has finished."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.values import Name, duration_option

if TYPE_CHECKING:
    from conquiet.mq.look.retention import PartitionTrim


def trim(
    context: CommandContext,
    name: Name,
    keep: Annotated[
        int | None, typer.Option("--keep", help="Keep so many entries in each partition, finished or not.")
    ] = None,
    keep_for: Annotated[int | None, duration_option("--keep-for", "Keep what is younger than this.")] = None,
    without_groups: Annotated[
        bool, typer.Option("--without-groups", help="Also if no group reads it.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove old entries; never one that some group has not finished.

    Without --keep and --keep-for, by the topic's retention policy.
    """
    from conquiet.mq import MqAdmin

    with context.client() as client:
        admin = MqAdmin(client)
        trims = context.confirmed(
            lambda is_dry_run: admin.trim(
                name,
                retention_length=keep,
                retention_ms=keep_for,
                without_groups=without_groups,
                dry_run=is_dry_run,
            ),
            lambda trims: f"Remove {_count(trims)} finished entries of {name!r}?",
            yes=yes,
            dry_run=dry_run,
        )
    document = {
        "topic": name,
        "removed": sum(partition.removed for partition in trims),
        "partitions": [asdict(partition) for partition in trims],
        "is_dry_run": dry_run,
    }
    lines = [f"{'Would remove' if dry_run else 'Removed'} {_count(trims)} entries of {name!r}."]
    lines += [
        f"  partition {each.partition} is left alone: {', '.join(each.missing_groups)} has not begun there"
        for each in trims
        if each.missing_groups
    ]
    context.output.show(document, "\n".join(lines))


def _count(trims: tuple[PartitionTrim, ...]) -> str:
    at_least = "at least " if any(partition.has_more for partition in trims) else ""
    return f"{at_least}{sum(partition.removed for partition in trims):,}"
