"""How much a topic's group has before it, and how many dead letters there are: looks that change nothing."""

from __future__ import annotations

from collections.abc import Iterable

from conquiet.consume import quarantine_stream
from conquiet.mq import DeadLetters, Topic, Topics
from conquiet.queue import BacklogStats, Client, entry_id_order, peek_backlog
from dagster_conquiet.specs import DrainSpec, TopicDrainSpec

_COUNT_LIMIT = 1_000


def partition_backlogs(client: Client, spec: TopicDrainSpec) -> dict[int, BacklogStats]:
    """The backlog of each partition that the topic has now, which may be more than the spec says."""
    topic = Topics(client).open(spec.topic)
    return {
        partition: peek_backlog(
            client, stream=topic.keys.stream(partition), group=spec.group, count_limit=_COUNT_LIMIT
        )
        for partition in topic.partitions
    }


def topic_backlog(client: Client, spec: TopicDrainSpec) -> BacklogStats:
    """All partitions together: the highest ids, the sums; the lag is unknown if that of one partition is."""
    parts = list(partition_backlogs(client, spec).values())
    lags = [part.lag for part in parts]
    return BacklogStats(
        stream=spec.topic,
        group=spec.group,
        length=sum(part.length for part in parts),
        last_id=_highest(part.last_id for part in parts),
        last_delivered_id=_highest(part.last_delivered_id for part in parts),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        lag_source=None if None in lags else "counted",
        pending=sum(part.pending for part in parts),
        oldest_pending_age_ms=_oldest(part.oldest_pending_age_ms for part in parts),
        oldest_undelivered_age_ms=_oldest(part.oldest_undelivered_age_ms for part in parts),
        consumers=tuple(consumer for part in parts for consumer in part.consumers),
    )


def dead_letter_count(client: Client, spec: DrainSpec | TopicDrainSpec) -> int:
    """What will not be tried again by itself: letters of a topic, or the quarantine of a plain stream."""
    if isinstance(spec, TopicDrainSpec):
        topic: Topic = Topics(client).open(spec.topic)
        return DeadLetters(topic).count()
    return int(client.xlen(quarantine_stream(spec.stream)))


def _oldest(ages: Iterable[int | None]) -> int | None:
    return max((age for age in ages if age is not None), default=None)


def _highest(ids: Iterable[str]) -> str:
    return max(ids, key=entry_id_order, default="0-0")
