"""The backlog and the dead letters of a stream or topic: read, and nothing is changed or created."""

from __future__ import annotations

from collections.abc import Iterable

from conquiet.consume import dead_letter_stream
from conquiet.mq import DeadLetters, Topics
from conquiet.queue import BacklogStats, Client, entry_id_order, peek_backlog
from dagster_conquiet.specs import AnySpec, TopicDrainSpec

#: Where the server does not know the lag, this many entries are counted.
COUNT_LIMIT = 10_000


def partition_backlogs(client: Client, spec: TopicDrainSpec) -> dict[int, BacklogStats]:
    """The backlog of each partition that the topic has now, which may be more than the spec has."""
    topic = Topics(client).open(spec.topic)
    return {
        partition: peek_backlog(client, stream=topic.keys.stream(partition), group=spec.group)
        for partition in topic.partitions
    }


def backlog_of(client: Client, spec: AnySpec) -> BacklogStats:
    """The stream's backlog; of a topic that of all partitions, its lag unknown if one partition's is."""
    if not isinstance(spec, TopicDrainSpec):
        return peek_backlog(client, stream=spec.stream, group=spec.group, count_limit=COUNT_LIMIT)
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


def dead_letter_count(client: Client, spec: AnySpec) -> int:
    """How many messages of the stream or topic were given up."""
    if isinstance(spec, TopicDrainSpec):
        return DeadLetters(Topics(client).open(spec.topic)).count()
    return int(client.xlen(dead_letter_stream(spec.stream)))


def _oldest(ages: Iterable[int | None]) -> int | None:
    return max((age for age in ages if age is not None), default=None)


def _highest(ids: Iterable[str]) -> str:
    return max(ids, key=entry_id_order, default="0-0")
