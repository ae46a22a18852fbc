"""The backlog and the dead letters of a stream or topic: read, and nothing is changed or created."""

from __future__ import annotations

from conquiet.consume import dead_letter_stream
from conquiet.mq import DeadLetters, Topics
from conquiet.mq.look.stats import total_backlog
from conquiet.queue import BacklogStats, Client, peek_backlog
from dagster_conquiet.specs import AnySpec, TopicDrainSpec


def partition_backlogs(client: Client, spec: TopicDrainSpec) -> dict[int, BacklogStats]:
    """The backlog of each partition that the topic has now, which may be more than the spec has."""
    topic = Topics(client).open(spec.topic)
    return {
        partition: peek_backlog(client, stream=topic.keys.stream(partition), group=spec.group)
        for partition in topic.partitions
    }


def backlog_of(client: Client, spec: AnySpec) -> BacklogStats:
    """The stream's backlog, or that of all partitions of the topic together."""
    if isinstance(spec, TopicDrainSpec):
        parts = list(partition_backlogs(client, spec).values())
        return total_backlog(spec.topic, spec.group, parts)
    return peek_backlog(client, stream=spec.stream, group=spec.group)


def dead_letter_count(client: Client, spec: AnySpec) -> int:
    """How many messages of the stream or topic were given up; none of a stream that does not exist."""
    if isinstance(spec, TopicDrainSpec):
        return DeadLetters(Topics(client).open(spec.topic)).count()
    return int(client.xlen(dead_letter_stream(spec.stream)))
