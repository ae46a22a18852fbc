"""Turns fresh nodes into a cluster of primaries, and knows when a cluster serves every slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from conquiet.embedded.ports import HOST

SLOTS = 16_384


def form_cluster(nodes: Sequence[redis.Redis], ports: Sequence[int]) -> None:
    """Give each node its share of the slots and introduce all to each other; what is already so stays so."""
    for number, node in enumerate(nodes):
        own = _own_entry(node)
        if not own["slots"]:
            _give_slots(node, number, len(nodes))
        if own["epoch"] == "0" and len(_entries(node)) == 1:
            # Distinct from the start; nodes that meet with equal epochs first have to settle who is newer.
            node.cluster("SET-CONFIG-EPOCH", number + 1)
    for node in nodes:
        # Each meets each: news of a third node would wait for the next gossip.
        for port in set(ports) - _known_ports(node):
            node.cluster("MEET", HOST, port)


def is_formed(nodes: Sequence[redis.Redis], ports: Sequence[int]) -> bool:
    """Whether every node serves, and is connected to every other under its present address."""
    return all(_is_serving(node) and _has_links_to(node, ports) for node in nodes)


def _give_slots(node: redis.Redis, number: int, count: int) -> None:
    first, after_last = (SLOTS * bound // count for bound in (number, number + 1))
    # Redis 6.2 has no ADDSLOTSRANGE.
    node.cluster("ADDSLOTS", *range(first, after_last))


def _is_serving(node: redis.Redis) -> bool:
    info: dict[str, str] = node.cluster("INFO")
    return info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS)


def _has_links_to(node: redis.Redis, ports: Sequence[int]) -> bool:
    entries = _entries(node)
    return entries.keys() == {f"{HOST}:{port}" for port in ports} and all(
        entry["connected"] for entry in entries.values()
    )


def _known_ports(node: redis.Redis) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in _entries(node)}


def _own_entry(node: redis.Redis) -> dict[str, Any]:
    return next(entry for entry in _entries(node).values() if "myself" in entry["flags"])


def _entries(node: redis.Redis) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = node.cluster("NODES")
    return entries
