"""Pending entries of a group: filtered, sorted, page by page; and delayed messages."""

from __future__ import annotations

from typing import Any

from conquiet.mq import MqAdmin, Topics
from conquiet.mq.look.pending import PendingPage, PendingQuery, pending_page
from conquiet.mq.look.stats import partitions_with
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View
from conquiet.queue.stream import HANDED_BACK_IDLE_MS

_SORTS = ("id", "idle", "deliveries")
_ROWS = 50
#: Entries that are looked at to find those that are idle for long enough: the server would look at all.
_MOST_READ = 5_000


def read(site: Site, query: Query) -> dict[str, Any]:
    """One page; by id 50 entries are read, in the other orders 10,000 at most."""
    name, admin = query.needed("name"), MqAdmin(site.client)
    topic = Topics(site.client).open_existing(name)
    groups = [group.group for group in admin.groups(topic)]
    group = query.text("group") or (groups[0] if groups else None)
    sort = query.choice("sort", _SORTS)
    page, partition = None, query.partition()
    if group is not None:
        wanted = PendingQuery(
            limit=query.number("limit", _ROWS, most=500),
            cursor=query.text("cursor"),
            sort=sort,  # type: ignore[arg-type]  # one of them
            min_idle_ms=query.duration("min_idle") or 0,
            consumer=query.text("consumer"),
            most_read=_MOST_READ,
        )
        partitions = partitions_with(topic, group)
        if partition is not None:
            partitions = [one for one in partitions if one == partition]
        page = (
            pending_page(topic, group, partitions, wanted)
            if partitions
            else PendingPage(entries=(), cursor=None)
        )
    return {
        "name": name,
        "group": group,
        "groups": groups,
        "page": page,
        "partition": partition,
        "sort": sort,
        "sorts": _SORTS,
        "min_idle": query.text("min_idle") or "",
        "consumer": query.text("consumer") or "",
        "free_from_ms": HANDED_BACK_IDLE_MS,
    }


def read_delayed(site: Site, query: Query) -> dict[str, Any]:
    """What waits to be added, the next one due first."""
    name, admin = query.needed("name"), MqAdmin(site.client)
    messages = admin.delayed(name, limit=_ROWS)
    return {
        "name": name,
        "total": admin.topic(name).delayed,
        "messages": [(one, site.mask.as_json(one.payload, longest=300)) for one in messages],
    }


VIEWS = (
    View("/pending", "pending.html", read),
    View("/delayed", "delayed.html", read_delayed),
)
