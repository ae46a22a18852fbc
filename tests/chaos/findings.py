"""What must be so in the streams at the end of a run, seen from outside with plain commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.chaos.plan import GROUP, KEYS, Message, Plan
from tests.services import Client


def broken_by_streams(client: Client, plan: Plan, *, sent: int) -> Iterator[str]:
    """All entries were added once, and none of them was given up."""
    infos = [client.xinfo_stream(KEYS.stream(partition)) for partition in range(plan.partitions)]
    # Not those that are there: consumers trim what is finished.
    entries = sum(info["entries-added"] for info in infos)
    if entries != sent:
        yield f"the partitions were given {entries} entries, {sent} were sent and not lost by a failover"
    if dead := client.xlen(KEYS.dead_letters(0)):
        yield f"there are {dead} dead letters, the first is {client.xrange(KEYS.dead_letters(0), count=1)}"


def left_to_do(client: Client, plan: Plan) -> Iterator[str]:
    """What is left to do, by partition."""
    for partition in range(plan.partitions):
        stream = KEYS.stream(partition)
        if not client.exists(stream):
            continue
        group = _group_of(client, stream)
        if group is None:
            yield f"{stream} was never read"
            continue
        if group["pending"]:
            yield f"{stream} has {group['pending']} pending entries"
        if group["last-delivered-id"] != client.xinfo_stream(stream)["last-generated-id"]:
            yield f"{stream} has a lag of {group.get('lag')}"
        if waiting := client.zcard(KEYS.waiting(GROUP, partition)):
            yield f"{stream} has {waiting} entries that wait for their retry"


def count_settled(client: Client, plan: Plan) -> int:
    """How many entries were delivered and are pending no more, as the server counts them."""
    groups = [_group_of(client, KEYS.stream(partition)) for partition in range(plan.partitions)]
    return sum((group["entries-read"] or 0) - group["pending"] for group in groups if group)


def count_backlog(client: Client, plan: Plan) -> int:
    """How many entries are not settled, as far as the server can tell."""
    groups = [_group_of(client, KEYS.stream(partition)) for partition in range(plan.partitions)]
    return sum((group["lag"] or 0) + group["pending"] for group in groups if group)


def unfinished_messages(client: Client, plan: Plan) -> set[Message]:
    """The messages that are pending, wait for their retry or were never delivered."""
    found = set()
    for partition in range(plan.partitions):
        stream = KEYS.stream(partition)
        group = _group_of(client, stream)
        ids = set(client.zrange(KEYS.waiting(GROUP, partition), 0, -1))
        if group and group["pending"]:
            rows = client.xpending_range(stream, GROUP, "-", "+", group["pending"])
            ids |= {row["message_id"] for row in rows}
        last = group["last-delivered-id"] if group else "0-0"
        entries = client.xrange(stream, f"({last}")
        entries += [entry for entry_id in ids for entry in client.xrange(stream, entry_id, entry_id)]
        payloads = [json.loads(fields["data"])["payload"] for _, fields in entries]
        found |= {(payload["key"], payload["number"]) for payload in payloads}
    return found


def _group_of(client: Client, stream: str) -> dict[str, Any] | None:
    if not client.exists(stream):
        return None
    return next((info for info in client.xinfo_groups(stream) if info["name"] == GROUP), None)


def left_behind(client: Client, plan: Plan) -> Iterator[str]:
    """What workers that left in peace, with all work done, must not leave in Redis."""
    for partition in range(plan.partitions):
        for key in (KEYS.lease(GROUP, partition), KEYS.failures(GROUP, partition)):
            if client.exists(key):
                yield f"{key} is left: {client.hgetall(key)}"
    if members := client.zcard(KEYS.members(GROUP)):
        yield f"{members} members are left in the group"
