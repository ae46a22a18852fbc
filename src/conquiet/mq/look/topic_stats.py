"""What a topic holds: read-only, without SCAN."""

from __future__ import annotations

from dataclasses import dataclass

from redis.cluster import RedisCluster

from conquiet.mq.keys import RegistryKeys
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """One topic at one moment; a partition that nobody sent to counts as empty."""

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

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Entries in all partitions."""
        return sum(self.lengths)


def topic_stats(topic: Topic) -> TopicStats:
    """Look at one topic."""
    streams = [topic.keys.stream(partition) for partition in topic.partitions]
    firsts = [topic.call("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams]
    lasts = [topic.call("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams]
    first_positions = [Position.of(entries[0][0], 0) for entries in firsts if entries]
    last_positions = [Position.of(entries[0][0], 0) for entries in lasts if entries]
    return TopicStats(
        name=topic.name,
        lengths=tuple(topic.call("XLEN", stream) for stream in streams),
        first_id=min(first_positions).entry_id if first_positions else None,
        last_id=max(last_positions).entry_id if last_positions else None,
        created_at_ms=topic.created_at_ms,
        updated_at_ms=_updated_at_ms(topic),
    )


def _updated_at_ms(topic: Topic) -> int | None:
    meta = RegistryKeys(isinstance(topic.client, RedisCluster)).meta(topic.name)
    updated_at = topic.call("HGET", meta, "updatedAt")
    return None if updated_at is None else int(updated_at)
