"""Changes to a group: move it, prune its consumers, delete it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conquiet.errors import TopicError
from conquiet.mq import scripts
from conquiet.mq.clock import server_ms
from conquiet.mq.look.owners import live_members
from conquiet.mq.look.stats import partitions_with
from conquiet.mq.positions import Position
from conquiet.mq.send.delayed import copies_for, forget
from conquiet.mq.topics import Topic

_LAST_SEQUENCE = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReset:
    """How a reset moves a group in one partition."""

    partition: int
    last_delivered_id: str
    new_last_delivered_id: str
    #: Messages that the group is given once more; `None` if too many to count.
    delivered_again: int | None
    #: Messages that the group will never be given; `None` if too many to count.
    skipped: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedConsumer:
    """A consumer that had nothing pending in a partition."""

    partition: int
    name: str


def reset_group(
    topic: Topic, group: str, to: str | int, *, dry_run: bool, count_limit: int
) -> tuple[PartitionReset, ...]:
    """Move the group in every partition that has messages; `to` as `MqAdmin.reset_group` says."""
    partitions_with(topic, group)
    after, resets = _id_before(to), []
    for partition in topic.partitions:
        moved = scripts.reset_group(
            topic, partition, group, after=after, dry_run=dry_run, count_limit=count_limit
        )
        if moved is not None:
            last_id, new_last_id, again, skipped = moved
            resets.append(
                PartitionReset(
                    partition=partition,
                    last_delivered_id=last_id,
                    new_last_delivered_id=new_last_id,
                    delivered_again=again,
                    skipped=skipped,
                )
            )
    return tuple(resets)


def prune_consumers(topic: Topic, group: str, *, dry_run: bool) -> tuple[PrunedConsumer, ...]:
    """Delete consumers with nothing pending that are neither members nor owners."""
    members = [member.name for member in live_members(topic, group, server_ms(topic))]
    return tuple(
        PrunedConsumer(partition=partition, name=name)
        for partition in partitions_with(topic, group)
        for name in scripts.prune_consumers(topic, partition, group, members=members, dry_run=dry_run)
    )


def delete_group(topic: Topic, group: str, *, force: bool) -> None:
    """Delete the group from every partition, and its copies that wait to be added.

    Raises:
        TopicError: it has live members or messages that it has not finished, and `force` is not set.
    """
    partitions = partitions_with(topic, group)
    copies = copies_for(topic, group)
    if not force:
        members = live_members(topic, group, server_ms(topic))
        if members:
            names = ", ".join(member.name for member in members)
            reason = f"{names} work for it; stop them, or use force"
            raise TopicError(topic.name, f"keeps its group {group!r}: {reason}")
        if copies:
            waiting = sum(map(len, copies.values()))
            raise _kept(topic, group, f"{waiting} messages wait as copies for their retry")
        # All of them before the first is deleted: a group that is kept is kept as it is.
        _delete_from(topic, group, partitions, "look")
    # Before the group itself: a second call after a failure in between finds the group.
    for partition, names_of_copies in copies.items():
        forget(topic, partition, names_of_copies)
    _delete_from(topic, group, partitions, "force" if force else "delete")
    topic.call("DEL", topic.keys.members(group), group=group)


def _delete_from(
    topic: Topic, group: str, partitions: list[int], mode: Literal["look", "delete", "force"]
) -> None:
    # Of one server all at once; on a cluster each partition has a slot of its own.
    together = [[partition] for partition in partitions] if topic.layout == "hashed" else [partitions]
    for some in together:
        numbers = scripts.delete_group(topic, some, group, mode)
        for partition, number in zip(some, numbers, strict=True):
            if number and mode != "force":
                raise _kept(topic, group, f"{number} messages of partition {partition} are pending")


def _kept(topic: Topic, group: str, why: str) -> TopicError:
    return TopicError(
        topic.name,
        f"keeps its group {group!r}: {why} and would never be handled; settle them, or use force",
    )


def _id_before(to: str | int) -> str:
    if to == "start":
        return "0-0"
    if to == "end":
        return "$"
    position = Position(to, 0) if isinstance(to, int) else Position.parse(to)
    if position.sequence:
        return f"{position.ms}-{position.sequence - 1}"
    return f"{position.ms - 1}-{_LAST_SEQUENCE}" if position.ms else "0-0"
