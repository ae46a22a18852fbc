"""Changes to a group: its creation at a position, what a reset and a prune did, its deletion."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.errors import TopicError
from conquiet.mq import scripts
from conquiet.mq.look.owners import group_owners
from conquiet.mq.look.stats import group_marks, partitions_with
from conquiet.mq.positions import Position
from conquiet.mq.scripts import DeleteMode
from conquiet.mq.send.delayed import copies_for, forget
from conquiet.mq.topics import Topic, Topics
from conquiet.queue.connection import drains_key

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
    """The id after which a group goes on, to be given next the first message at or after `to`.

    Args:
        to: "start", "end" (as Redis: "$"), an entry id or a time in ms.
    """
    if to == "start":
        return "0-0"
    if to in ("end", "$"):
        return "$"
    if isinstance(to, bool) or not isinstance(to, str | int) or (isinstance(to, int) and to < 0):
        raise ValueError(f"a position is 'start', 'end', an entry id or a time in ms, got {to!r}")
    position = Position(to, 0) if isinstance(to, int) else Position.parse(to)
    if position.sequence:
        return f"{position.ms}-{position.sequence - 1}"
    return f"{position.ms - 1}-{_LAST_SEQUENCE}" if position.ms else "0-0"


def create_group(topic: Topic, group: str, at: str | int) -> bool:
    """Create a group at a position in every partition, and return `True`; `False` if it has begun in one.

    One that is there is left as it is. Partitions that are added later, it reads from their beginning.
    """
    after = id_before(at)
    if topic.layout != "hash_tagged":
        some = [list(topic.partitions)]
    else:
        # One call for each slot. If this ends in between, the group reads the others from their beginning.
        some = [[partition] for partition in topic.partitions]
        if any(group.encode() in groups for groups in group_marks(topic).values()):
            return False
    is_created = False
    for partitions in some:
        created = scripts.create_groups(topic, partitions, group, after=after)
        if created is None:
            Topics(topic.client).restore(topic)
            created = scripts.create_groups(topic, partitions, group, after=after)
        is_created = is_created or bool(created)
    return is_created


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
        live = sorted(group_owners(topic, group).live)
        if live:
            reason = f"{', '.join(live)} work for it; stop them, or use force"
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
    keys = [topic.keys.members(group), topic.keys.member_limits(group)]
    if topic.layout == "bare_stream":
        topic.call("DEL", drains_key(topic.name, group), group=group)
    topic.call("DEL", *keys, group=group)


def _unfinished(topic: Topic, group: str, why: str) -> TopicError:
    return TopicError(
        topic.name,
        f"keeps its group {group!r}: {why} and would never be handled; settle them, or use force",
    )
