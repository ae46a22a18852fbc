"""Groups and topics: forget consumers that have ended, trim what every group has finished, cancel delays."""

from __future__ import annotations

from conquiet.mq import MqAdmin
from conquiet.page.actions.action import Action, Option, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.commands import command
from conquiet.page.query import Query, address
from conquiet.page.site import Site


def plan_prune(site: Site, query: Query) -> Plan:
    """Forget the consumers of a group that have ended."""
    name, group = query.needed("name"), query.needed("group")
    admin = MqAdmin(site.client)

    def preview() -> Preview:
        names = sorted({one.name for one in admin.prune_consumers(name, group, dry_run=True)})
        shown = f": {', '.join(names[:10])}{' …' if len(names) > 10 else ''}" if names else ""
        text = f"{len(names):,} consumers have nothing pending and are not alive{shown}."
        return Preview(len(names), text, is_possible=bool(names))

    def run(progress: Progress) -> Done:
        progress.count = len({one.name for one in admin.prune_consumers(name, group)})
        return Done(progress.count, f"Forgot {progress.count:,} consumers of {name}/{group}.")

    return Plan(
        question=f"Forget consumers of {name}/{group} that have ended?",
        verb="Forget them",
        subject=f"{name}/{group}",
        command=command("consumers", "prune", name, group=group, yes=True),
        back=address("/consumers", {"name": name}),
        preview=preview,
        run=run,
    )


def plan_trim(site: Site, query: Query) -> Plan:
    """Remove what every group has finished, but for the newest entries."""
    name, keep = query.needed("name"), query.number("keep", 10_000, most=10**12)
    admin = MqAdmin(site.client)

    def preview() -> Preview:
        trims = admin.trim(name, retention_length=keep, dry_run=True)
        count = sum(one.removed for one in trims)
        more = " or more" if any(one.has_more for one in trims) else ""
        text = f"{count:,}{more} entries are finished by every group and would be removed for good."
        missing = sorted({group for one in trims for group in one.missing_groups})
        if missing:
            text += f" Group {', '.join(missing)} has not begun in some partitions: nothing is removed there."
        return Preview(count, text, is_possible=count > 0)

    def run(progress: Progress) -> Done:
        progress.count = sum(one.removed for one in admin.trim(name, retention_length=keep))
        return Done(progress.count, f"Removed {progress.count:,} entries that every group had finished.")

    return Plan(
        question=f"Trim {name} to {keep:,} entries in each partition, and what some group has not finished?",
        verb="Trim",
        subject=name,
        command=command("trim", name, keep=keep, yes=True),
        back=address("/topic", {"name": name}),
        destroys=True,
        options=(Option("keep", "Entries to keep in each partition", "10000", str(keep)),),
        preview=preview,
        run=run,
    )


def plan_cancel(site: Site, query: Query) -> Plan:
    """Delete delayed messages."""
    name, ids = query.needed("name"), query.chosen()
    admin = MqAdmin(site.client)

    def run(progress: Progress) -> Done:
        progress.count = admin.cancel_delayed(name, ids)
        return Done(progress.count, f"Deleted {progress.count:,} of {len(ids):,} delayed messages.")

    return Plan(
        question=f"Delete {len(ids):,} delayed messages of {name} for good?",
        verb="Delete for good",
        subject=name,
        command=command("delayed", "cancel", name, *ids, yes=True),
        back=address("/delayed", {"name": name}),
        destroys=True,
        preview=lambda: Preview(
            len(ids),
            f"{len(ids):,} messages would never be added; of a copy that waits for its retry, the "
            "message is lost to its group.",
            is_possible=bool(ids),
        ),
        run=run,
    )


ACTIONS = (Action("prune", plan_prune), Action("trim", plan_trim), Action("cancel-delayed", plan_cancel))
