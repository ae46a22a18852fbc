"""How far a consumer group is in a topic: per partition and in sum, read-only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from redis.exceptions import ResponseError

from conquiet.errors import QueueError, TopicError
from conquiet.mq.clock import server_ms
from conquiet.mq.topics import Topic
from conquiet.queue import ConsumerBacklog, QueueConfig
from conquiet.queue.backlog import backlog_stats

#: Last delivered ids by group, by partition; a partition that nobody sent to is left out.
GroupMarks = dict[int, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBacklog:
    """One group in one partition; a group that has not begun there has no last delivered id."""

    partition: int
    #: Entries in the stream, finished ones too.
    length: int
    pending: int = 0
    consumers: tuple[ConsumerBacklog, ...] = ()
    last_delivered_id: str | None = None
    #: Messages that the group has not been given; `None` if nobody knows.
    lag: int | None
    #: "length": the group has not begun, and will begin with the first entry.
    lag_source: Literal["server", "counted", "length"] | None
    oldest_undelivered_age_ms: int | None = None
    oldest_pending_age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One group in all partitions of a topic; the sums are over what the partitions tell."""

    topic: str
    group: str
    partitions: tuple[PartitionBacklog, ...]

    @property
    def pending(self) -> int:
        """Messages delivered and not settled."""
        return sum(partition.pending for partition in self.partitions)

    @property
    def lag(self) -> int | None:
        """Messages not delivered yet; `None` if one partition's lag is unknown."""
        lags = [partition.lag for partition in self.partitions]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the consumers that Redis knows, dead ones too."""
        names = {consumer.name for partition in self.partitions for consumer in partition.consumers}
        return tuple(sorted(names))

    @property
    def oldest_undelivered_age_ms(self) -> int | None:
        """How long the oldest message waits for its first delivery."""
        return _oldest(partition.oldest_undelivered_age_ms for partition in self.partitions)

    @property
    def oldest_pending_age_ms(self) -> int | None:
        """How old the oldest message is that was delivered and not settled."""
        return _oldest(partition.oldest_pending_age_ms for partition in self.partitions)


def group_marks(topic: Topic) -> GroupMarks:
    """The groups of each partition, with what they were given last."""
    marks = {}
    for partition in topic.partitions:
        try:
            infos = topic.call("XINFO GROUPS", topic.keys.stream(partition))
        except QueueError as error:
            if not _is_no_stream(error):
                raise
        else:
            marks[partition] = {info["name"].decode(): info["last-delivered-id"].decode() for info in infos}
    return marks


def group_names(marks: GroupMarks) -> list[str]:
    """Every group of the topic, in order."""
    return sorted({name for groups in marks.values() for name in groups})


def partitions_with(topic: Topic, group: str) -> list[int]:
    """The partitions where the group has begun.

    Raises:
        TopicError: there is none.
    """
    marks = group_marks(topic)
    found = [partition for partition, groups in marks.items() if group in groups]
    if not found:
        known = ", ".join(group_names(marks)) or "none"
        raise TopicError(topic.name, f"has no group {group!r}; its groups: {known}")
    return found


def group_stats(topic: Topic, group: str, marks: GroupMarks, *, count_limit: int) -> GroupStats:
    """Look at one group; counts at most `count_limit` entries where the server does not know a lag."""
    partitions = []
    for partition in topic.partitions:
        mark = marks.get(partition, {}).get(group)
        if mark is None:
            partitions.append(_not_begun(topic, partition))
        else:
            partitions.append(_begun(topic, partition, group, mark, count_limit))
    return GroupStats(topic=topic.name, group=group, partitions=tuple(partitions))


def _not_begun(topic: Topic, partition: int) -> PartitionBacklog:
    stream = topic.keys.stream(partition)
    length = topic.call("XLEN", stream)
    first = topic.call("XRANGE", stream, "-", "+", "COUNT", 1)
    return PartitionBacklog(
        partition=partition,
        length=length,
        lag=length,
        lag_source="length",
        oldest_undelivered_age_ms=max(0, server_ms(topic) - _entry_ms(first[0][0])) if first else None,
    )


def _begun(topic: Topic, partition: int, group: str, mark: str, count_limit: int) -> PartitionBacklog:
    # The consumer's name is not used: looking creates none.
    config = QueueConfig(topic.keys.stream(partition), group, "admin")
    stats = backlog_stats(partial(topic.call, group=group), config, count_limit=count_limit)
    return PartitionBacklog(
        partition=partition,
        length=stats.length,
        pending=stats.pending,
        consumers=stats.consumers,
        last_delivered_id=mark,
        lag=stats.lag,
        lag_source=stats.lag_source,
        oldest_undelivered_age_ms=stats.oldest_undelivered_age_ms,
        oldest_pending_age_ms=stats.oldest_pending_age_ms,
    )


def _entry_ms(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _oldest(ages: Iterable[int | None]) -> int | None:
    return max((age for age in ages if age is not None), default=None)


def _is_no_stream(error: QueueError) -> bool:
    return isinstance(error.__cause__, ResponseError) and "no such key" in str(error.__cause__)
