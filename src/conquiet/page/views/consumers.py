"""Consumers of a topic's groups, alive and dead; and the workers that run tasks."""

from __future__ import annotations

from typing import Any

from conquiet.mq import MqAdmin, Topics
from conquiet.operations import topic_facts
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

#: Consumers of one group that are shown; those with messages come first.
_MOST_SHOWN = 200


def read(site: Site, query: Query) -> dict[str, Any]:
    """Every group with its consumers, their leases and heartbeats."""
    name, admin = query.needed("name"), MqAdmin(site.client)
    topic = Topics(site.client).open_existing(name)
    facts = topic_facts(site.client, topic)
    rows = []
    for group in facts.groups:
        owners = admin.owners(topic, group.name)
        owned: dict[str, list[int]] = {}
        for lease in owners.partitions:
            if lease.owner is not None:
                owned.setdefault(lease.owner, []).append(lease.partition)
        consumers = sorted(group.consumers, key=lambda one: (-one.pending, one.idle_ms))
        rows.append((group, owners, owned, consumers[:_MOST_SHOWN], max(0, len(consumers) - _MOST_SHOWN)))
    return {"name": name, "rows": rows}


def read_workers(site: Site, query: Query) -> dict[str, Any]:
    """The processes that run tasks, by their heartbeats."""
    if not site.has_tasks:
        return {"workers": [], "queues": [], "command_options": {}}
    from conquiet.tasks.control.workers import live_workers

    workers = live_workers(site.client, site.settings.namespace, forgets_ended=False)
    return {"workers": workers, "queues": site.app.queues(), "command_options": site.command_options}


VIEWS = (
    View("/consumers", "consumers.html", read),
    View("/workers", "workers.html", read_workers, "workers"),
)
