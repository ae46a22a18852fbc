"""What a topic contains, and how far its consumer groups are: per partition and in total, read-only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from redis.exceptions import ResponseError

from conquiet.errors import QueueError, TopicError
from conquiet.mq.clock import server_ms
from conquiet.mq.look.delayed import count_delayed
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic
from conquiet.queue import BacklogStats, ConsumerBacklog, entry_id_order
from conquiet.queue.backlog import backlog_stats
from conquiet.queue.connection import as_text

#: Last delivered ids by group, by partition; a partition without a stream is left out. Groups are bytes: the
#: name of one that another program made need not be UTF-8.
GroupMarks = dict[int, dict[bytes, str]]

#: A consumer that has no heartbeat, as a `QueueConsumer`, and was not active for so long counts as dead.
_DEAD_AFTER_MS = 5 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """One topic at one moment; a partition that nothing was sent to counts as empty."""

    name: str
    #: Entries in each partition, finished ones too.
    lengths: tuple[int, ...]
    #: The oldest entry of all partitions.
    first_id: str | None
    #: The newest entry of all partitions.
    last_id: str | None
    created_at_ms: int | None
    #: When its partitions or policies were last changed.
    updated_at_ms: int | None
    #: Messages that wait to be added: sent with a delay, or copies to be retried.
    delayed: int

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Entries in all partitions."""
        return sum(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBacklog:
    """One group in one partition; a group that has not begun there has no last delivered id."""

    partition: int
    #: Entries in the stream, finished ones too.
    length: int
    pending: int = 0
    consumers: tuple[ConsumerBacklog, ...] = ()
    last_delivered_id: str | None = None
    #: Messages that the group has not been given; `None` if unknown.
    lag: int | None
    #: "length": the group has not begun, and will begin with the first entry.
    lag_source: Literal["server", "counted", "length"] | None
    oldest_undelivered_age_ms: int | None = None
    oldest_pending_age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One group in all partitions of a topic, and in total."""

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
        return total_lag(self.partitions)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the consumers that Redis knows, dead ones too."""
        names = {consumer.name for partition in self.partitions for consumer in partition.consumers}
        return tuple(sorted(names))

    @property
    def oldest_undelivered_age_ms(self) -> int | None:
        """How long the oldest message waits for its first delivery."""
        return oldest_age(partition.oldest_undelivered_age_ms for partition in self.partitions)

    @property
    def oldest_pending_age_ms(self) -> int | None:
        """How old the oldest message is that was delivered and not settled."""
        return oldest_age(partition.oldest_pending_age_ms for partition in self.partitions)


def dead_consumers(consumers: Iterable[ConsumerBacklog], live: Collection[str]) -> list[ConsumerBacklog]:
    """Those without a lease or heartbeat that were not active for five minutes either."""
    return [one for one in consumers if one.idle_ms > _DEAD_AFTER_MS and one.name not in live]


class HasLag(Protocol):
    """A backlog of one stream."""

    @property
    def lag(self) -> int | None:
        """`None` if unknown."""


def total_lag(parts: Iterable[HasLag]) -> int | None:
    """The lag of all parts together; `None` if that of one is unknown."""
    lags = [part.lag for part in parts]
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def oldest_age(ages: Iterable[int | None]) -> int | None:
    """The highest of the ages that are known."""
    return max((age for age in ages if age is not None), default=None)


def total_backlog(name: str, group: str, parts: Sequence[BacklogStats]) -> BacklogStats:
    """The backlogs of a topic's partitions as one: sums, highest ids and oldest ages.

    Examples:
        >>> streams = [topic.keys.stream(partition) for partition in topic.partitions]
        >>> parts = [peek_backlog(client, stream=stream, group="nobody") for stream in streams]
        >>> total_backlog("shipments", "nobody", parts).pending
        0
    """
    lag = total_lag(parts)
    return BacklogStats(
        stream=name,
        group=group,
        length=sum(part.length for part in parts),
        last_id=max((part.last_id for part in parts), key=entry_id_order, default="0-0"),
        last_delivered_id=max((part.last_delivered_id for part in parts), key=entry_id_order, default="0-0"),
        lag=lag,
        lag_source=None if lag is None else "counted",
        pending=sum(part.pending for part in parts),
        oldest_pending_age_ms=oldest_age(part.oldest_pending_age_ms for part in parts),
        oldest_undelivered_age_ms=oldest_age(part.oldest_undelivered_age_ms for part in parts),
        consumers=tuple(consumer for part in parts for consumer in part.consumers),
    )


def topic_stats(topic: Topic) -> TopicStats:
    """The figures of one topic."""
    streams = [topic.keys.stream(partition) for partition in topic.partitions]
    first = [topic.call("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams]
    last = [topic.call("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams]
    positions = [Position.of(entries[0][0], 0) for entries in (*first, *last) if entries]
    return TopicStats(
        name=topic.name,
        lengths=tuple(topic.call("XLEN", stream) for stream in streams),
        first_id=min(positions).entry_id if positions else None,
        last_id=max(positions).entry_id if positions else None,
        created_at_ms=topic.created_at_ms,
        updated_at_ms=topic.updated_at_ms,
        delayed=count_delayed(topic),
    )


def group_marks(topic: Topic) -> GroupMarks:
    """The groups of each partition, with what they were given last."""
    marks = {}
    for partition in topic.partitions:
        try:
            infos = topic.call("XINFO GROUPS", topic.keys.stream(partition))
        except QueueError as error:
            if not (isinstance(error.__cause__, ResponseError) and "no such key" in str(error.__cause__)):
                raise
        else:
            marks[partition] = {info["name"]: info["last-delivered-id"].decode() for info in infos}
    return marks


def group_names(marks: GroupMarks) -> list[bytes]:
    """Every group of the topic, in order."""
    return sorted({name for groups in marks.values() for name in groups})


def partitions_with(topic: Topic, group: str) -> list[int]:
    """The partitions where the group has begun.

    Raises:
        TopicError: there is none.
    """
    marks = group_marks(topic)
    partitions = [partition for partition, groups in marks.items() if group.encode() in groups]
    if not partitions:
        known = ", ".join(map(as_text, group_names(marks))) or "none"
        raise TopicError(topic.name, f"has no group {group!r}; its groups: {known}")
    return partitions


def group_stats(topic: Topic, group: bytes, marks: GroupMarks, *, count_limit: int) -> GroupStats:
    """The figures of one group; counts at most `count_limit` entries where the server does not know a lag."""
    name, parts = as_text(group), []
    for partition in topic.partitions:
        mark = marks.get(partition, {}).get(group)
        stream = topic.keys.stream(partition)
        if mark is None:
            length = topic.call("XLEN", stream)
            first = topic.call("XRANGE", stream, "-", "+", "COUNT", 1)
            age_ms = max(0, server_ms(topic) - Position.of(first[0][0], partition).ms) if first else None
            parts.append(
                PartitionBacklog(
                    partition=partition,
                    length=length,
                    lag=length,
                    lag_source="length",
                    oldest_undelivered_age_ms=age_ms,
                )
            )
        else:
            stats = backlog_stats(partial(topic.call, group=name), stream, group, count_limit=count_limit)
            parts.append(
                PartitionBacklog(
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
            )
    return GroupStats(topic=topic.name, group=name, partitions=tuple(parts))
