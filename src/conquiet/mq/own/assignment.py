"""Who should own which partition: pure, the same answer for every member that sees the same group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The live members, each with the most partitions that it may own; `None` for any number.
Members = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one member should do next."""

    #: How many of the free partitions to try for.
    acquire: int
    #: Partitions to give up, so that others get their share.
    release: tuple[int, ...]


def fair_shares(members: Members, partition_count: int) -> dict[str, int]:
    """How many partitions each member should own: P / M, the first ones in the order of names one more.

    What a member may not own is shared by the others. All partitions have an owner, unless the limits of all
    members together are below their number.
    """
    shares: dict[str, int] = {}
    open_ = sorted(members)
    left = partition_count
    while open_:
        smallest, left_over = divmod(left, len(open_))
        limits = {name: limit for name in open_ if (limit := members[name]) is not None and limit <= smallest}
        if not limits:
            return shares | {name: smallest + (number < left_over) for number, name in enumerate(open_)}
        shares |= limits
        left -= sum(limits.values())
        open_ = [name for name in open_ if name not in limits]
    return shares


def plan(member: str, members: Members, partition_count: int, owned: Sequence[int]) -> Plan:
    """Give up what is above the fair share, the last ones first; else try for what is missing."""
    share = fair_shares(members, partition_count)[member]
    surplus = tuple(sorted(owned)[share:])
    return Plan(acquire=max(0, share - len(owned)), release=surplus)


def most_owned(members: Members) -> int | None:
    """How many partitions the members may own together; `None` for any number."""
    limits = [limit for limit in members.values() if limit is not None]
    return sum(limits) if len(limits) == len(members) else None
