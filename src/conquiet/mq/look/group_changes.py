"""Changes to a group: what a reset and a prune did, and the deletion of a group."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.errors import TopicError
from conquiet.mq import scripts
from conquiet.mq.clock import server_ms
from conquiet.mq.look.owners import live_members
from conquiet.mq.look.stats import partitions_with
from conquiet.mq.positions import Position
from conquiet.mq.scripts import DeleteMode
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


def id_before(to: str | int) -> str:
    """The id after which a group goes on, to be given next what `MqAdmin.reset_group` calls `to`."""
    if to == "start":
        return "0-0"
    if to == "end":
        return "$"
    position = Position(to, 0) if isinstance(to, int) else Position.parse(to)
    if position.sequence:
        return f"{position.ms}-{position.sequence - 1}"
    return f"{position.ms - 1}-{_LAST_SEQUENCE}" if position.ms else "0-0"


def delete_group(topic: Topic, group: str, *, force: bool) -> None:
    """Delete the group from every partition, and its copies that wait to be added.

    Raises:
        TopicError: it has live members or messages that it has not finished, and `force` is not set.
    """
    partitions = partitions_with(topic, group)
    copies = copies_for(topic, group)
    # Of one server all at once; on a cluster each partition has a slot of its own.
    in_one_slot = [[partition] for partition in partitions] if topic.layout == "hash_tagged" else [partitions]
    if not force:
        members = [member.name for member in live_members(topic, group, server_ms(topic))]
        if members:
            reason = f"{', '.join(members)} work for it; stop them, or use force"
            raise TopicError(topic.name, f"keeps its group {group!r}: {reason}")
        if copies:
            waiting = sum(map(len, copies.values()))
            raise _unfinished(topic, group, f"{waiting} messages wait as copies for their retry")
    # All of them are checked before the first is deleted: a group that is kept is kept as it is.
    modes: tuple[DeleteMode, ...] = ("force",) if force else ("count", "delete")
    for mode in modes:
        if mode != "count":
            # Before the group itself: a second call after a failure in between finds the group.
            for partition, names in copies.items():
                forget(topic, partition, names)
        for some in in_one_slot:
            for partition, number in zip(some, scripts.delete_group(topic, some, group, mode), strict=True):
                if number and not force:
                    raise _unfinished(topic, group, f"{number} messages of partition {partition} are pending")
    topic.call("DEL", topic.keys.members(group), group=group)


def _unfinished(topic: Topic, group: str, why: str) -> TopicError:
    return TopicError(
        topic.name,
        f"keeps its group {group!r}: {why} and would never be handled; settle them, or use force",
    )
