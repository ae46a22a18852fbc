"""Forms a cluster of primaries out of fresh nodes, and checks whether a cluster serves every slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from conquiet.embedded.ports import HOST

SLOTS = 16_384


def form_cluster(nodes: Sequence[redis.Redis], ports: Sequence[int]) -> None:
    """Give each node its share of the slots and let all meet; what is done already is left as it is."""
    for number, node in enumerate(nodes):
        entries = _entries(node)
        own = next(entry for entry in entries.values() if "myself" in entry["flags"])
        if not own["slots"]:
            first, after_last = (SLOTS * bound // len(nodes) for bound in (number, number + 1))
            # Redis 6.2 has no ADDSLOTSRANGE.
            node.cluster("ADDSLOTS", *range(first, after_last))
        if own["epoch"] == "0" and len(entries) == 1:
            # Distinct from the start: nodes that meet with equal epochs would first have to resolve them.
            node.cluster("SET-CONFIG-EPOCH", number + 1)
    for node in nodes:
        # Each meets each: a third node would become known only with the next gossip.
        known = {int(address.rpartition(":")[2]) for address in _entries(node)}
        for port in set(ports) - known:
            node.cluster("MEET", HOST, port)


def is_formed(nodes: Sequence[redis.Redis], ports: Sequence[int]) -> bool:
    """Whether every node serves, and is connected to every other under its present address."""
    addresses = {f"{HOST}:{port}" for port in ports}
    for node in nodes:
        info: dict[str, str] = node.cluster("INFO")
        entries = _entries(node)
        is_serving = info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS)
        is_connected = entries.keys() == addresses and all(entry["connected"] for entry in entries.values())
        if not (is_serving and is_connected):
            return False
    return True


def _entries(node: redis.Redis) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = node.cluster("NODES")
    return entries
