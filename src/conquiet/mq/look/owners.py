"""Which consumer owns which partition of a topic for a group, and which are alive; read-only."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.mq.clock import server_ms
from conquiet.mq.topics import Topic, limit_of, number_of
from conquiet.queue.connection import as_text, drains_key


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOwner:
    """The lease of one partition; all `None` if it has no owner, and what cannot be read is `None` too."""

    partition: int
    owner: str | None = None
    #: Rises whenever the partition is acquired.
    epoch: int | None = None
    since_ms: int | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One live consumer, and when it counts as dead unless it sends another heartbeat."""

    name: str
    expires_at_ms: int
    #: The most partitions that it may own; `None` for any number.
    max_partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOwners:
    """A group at one moment, by the server's clock."""

    partitions: tuple[PartitionOwner, ...]
    members: tuple[GroupMember, ...]
    #: Of a plain stream: the consumers under whose names drains live, by their heartbeats.
    drains: tuple[str, ...] = ()

    @property
    def live(self) -> frozenset[str]:
        """Every consumer that is known to be alive."""
        owners = (lease.owner for lease in self.partitions if lease.owner is not None)
        return frozenset((*owners, *(member.name for member in self.members), *self.drains))


def group_owners(topic: Topic, group: str) -> GroupOwners:
    """The leases and the members of a group; one that no consumer joined has neither."""
    now_ms = server_ms(topic)
    owners = []
    for partition in topic.partitions:
        fields = ("owner", "epoch", "acquiredAtMs", "expiresAtMs")
        owner, *texts = topic.call("HMGET", topic.keys.lease(group, partition), *fields, group=group)
        epoch, since_ms, expires_at_ms = map(number_of, texts)
        # An expired lease has no owner, even if its key is still there.
        if owner is None or (expires_at_ms or 0) <= now_ms:
            owners.append(PartitionOwner(partition=partition))
        else:
            owners.append(
                PartitionOwner(
                    partition=partition,
                    owner=as_text(owner),
                    epoch=epoch,
                    since_ms=since_ms,
                    expires_at_ms=expires_at_ms,
                )
            )
    return GroupOwners(
        partitions=tuple(owners),
        members=_live_members(topic, group, now_ms),
        drains=_live_drains(topic, group, now_ms),
    )


def _live_drains(topic: Topic, group: str, now_ms: int) -> tuple[str, ...]:
    if topic.layout != "bare_stream":
        return ()
    records = topic.call("HGETALL", drains_key(topic.name, group), group=group)
    # As join.lua writes them.
    ends = {as_text(name): number_of(record.partition(b" ")[0]) for name, record in records.items()}
    return tuple(sorted(name for name, end in ends.items() if (end or 0) > now_ms))


def _live_members(topic: Topic, group: str, now_ms: int) -> tuple[GroupMember, ...]:
    """The members that have not expired, in the order of names."""
    rows = _member_rows(topic, group, now_ms)
    command = ("ZRANGEBYSCORE", topic.keys.member_limits(group), "-inf", "+inf", "WITHSCORES")
    limits = dict(topic.call(*command, group=group, withscores=True))
    members = (
        GroupMember(
            name=as_text(name),
            # A score may be infinite.
            expires_at_ms=int(min(score, 2**63)),
            max_partitions=limit_of(limits.get(name)),
        )
        for name, score in rows
    )
    return tuple(sorted(members, key=lambda member: member.name))


def live_names(topic: Topic, group: str, now_ms: int) -> list[bytes]:
    """The names of the same members as the server has them."""
    return [name for name, _ in _member_rows(topic, group, now_ms)]


def _member_rows(topic: Topic, group: str, now_ms: int) -> list[tuple[bytes, float]]:
    command = ("ZRANGEBYSCORE", topic.keys.members(group), f"({now_ms}", "+inf", "WITHSCORES")
    rows: list[tuple[bytes, float]] = topic.call(*command, group=group, withscores=True)
    return rows
