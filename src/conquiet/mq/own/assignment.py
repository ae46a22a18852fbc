"""Who should own which partition: pure, the same answer for every member that sees the same group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """What one member should do next."""

    #: How many of the free partitions to try for.
    acquire: int
    #: Partitions to give up, so that others get their share.
    release: tuple[int, ...]


def fair_share(member: str, members: Collection[str], partition_count: int) -> int:
    """How many partitions a member should own: P / M, the first ones in the order of names one more."""
    ordered = sorted({*members, member})
    smallest, left_over = divmod(partition_count, len(ordered))
    return smallest + (ordered.index(member) < left_over)


def plan(member: str, members: Collection[str], partition_count: int, owned: Sequence[int]) -> Plan:
    """Give up what is above the fair share, the last ones first; else try for what is missing."""
    share = fair_share(member, members, partition_count)
    surplus = tuple(sorted(owned)[share:])
    return Plan(acquire=max(0, share - len(owned)), release=surplus)
