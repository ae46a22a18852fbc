"""Who owns which partition of a topic for a group, and who is alive: a look that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.mq.clock import server_ms
from conquiet.mq.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOwner:
    """The lease of one partition; all `None` if nobody holds it."""

    partition: int
    owner: str | None = None
    #: Rises whenever the partition is acquired.
    epoch: int | None = None
    since_ms: int | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One consumer that lives, and when it counts as dead unless it is heard again."""

    name: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOwners:
    """A group at one moment, by the server's clock."""

    partitions: tuple[PartitionOwner, ...]
    members: tuple[GroupMember, ...]


def group_owners(topic: Topic, group: str) -> GroupOwners:
    """Look at the leases and the members; a group that nobody joined has neither."""
    now_ms = server_ms(topic)
    return GroupOwners(
        partitions=tuple(_owner(topic, group, partition, now_ms) for partition in topic.partitions),
        members=live_members(topic, group, now_ms),
    )


def live_members(topic: Topic, group: str, now_ms: int) -> tuple[GroupMember, ...]:
    """The members whose time is not over, in the order of names."""
    command = ("ZRANGEBYSCORE", topic.keys.members(group), f"({now_ms}", "+inf", "WITHSCORES")
    rows = topic.call(*command, group=group, withscores=True)
    return tuple(
        sorted(
            (GroupMember(name=name.decode(), expires_at_ms=int(score)) for name, score in rows),
            key=lambda member: member.name,
        )
    )


def _owner(topic: Topic, group: str, partition: int, now_ms: int) -> PartitionOwner:
    fields = ("owner", "epoch", "acquiredAtMs", "expiresAtMs")
    owner, epoch, since_ms, expires_at_ms = topic.call(
        "HMGET", topic.keys.lease(group, partition), *fields, group=group
    )
    # An expired lease is nobody's, even if its key is still there.
    if owner is None or int(expires_at_ms) <= now_ms:
        return PartitionOwner(partition=partition)
    return PartitionOwner(
        partition=partition,
        owner=owner.decode(),
        epoch=int(epoch),
        since_ms=int(since_ms),
        expires_at_ms=int(expires_at_ms),
    )
