"""`conquiet trim`: old entries that every group has finished."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.site import DryRunOption, Site, YesOption, command
from conquiet.cli.values import Name, parse_duration

if TYPE_CHECKING:
    from conquiet.mq.look.retention import PartitionTrim


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "trim")(trim)


def trim(
    site: Site,
    name: Name,
    keep: Annotated[
        int | None, typer.Option("--keep", help="Keep so many entries in each partition, finished or not.")
    ] = None,
    keep_for: Annotated[
        str | None, typer.Option("--keep-for", help="Keep what is younger than this.", metavar="DURATION")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove old entries; never one that some group has not finished.

    Without --keep and --keep-for, by the topic's retention policy.
    """
    from conquiet.mq import MqAdmin

    keep_ms = parse_duration(keep_for) if keep_for else None
    with site.client() as client:
        admin = MqAdmin(client)
        trims = admin.trim(name, retention_length=keep, retention_ms=keep_ms, dry_run=True)
        if not dry_run:
            site.output.confirm(f"Remove {_count(trims)} finished entries of {name!r}?", is_yes=yes)
            trims = admin.trim(name, retention_length=keep, retention_ms=keep_ms)
    document = {
        "topic": name,
        "removed": sum(one.removed for one in trims),
        "partitions": [asdict(one) for one in trims],
        "is_dry_run": dry_run,
    }
    site.output.show(document, lambda: _tell(site, name, trims, dry_run))


def _count(trims: tuple[PartitionTrim, ...]) -> str:
    at_least = "at least " if any(one.has_more for one in trims) else ""
    return f"{at_least}{sum(one.removed for one in trims):,}"


def _tell(site: Site, name: str, trims: tuple[PartitionTrim, ...], is_dry_run: bool) -> None:
    site.output.say(f"{'Would remove' if is_dry_run else 'Removed'} {_count(trims)} entries of {name!r}.")
    for one in trims:
        if one.missing_groups:
            groups = ", ".join(one.missing_groups)
            site.output.say(f"  partition {one.partition} is left alone: {groups} has not begun there")
