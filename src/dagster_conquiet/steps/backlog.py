"""The backlog and the dead letters of a stream or topic: read, and nothing is changed or created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conquiet.consume import dead_letter_stream
from conquiet.mq import DeadLetters, Topic, Topics
from conquiet.mq.clock import server_ms
from conquiet.mq.look.owners import group_owners
from conquiet.mq.look.stats import total_backlog
from conquiet.queue import BacklogStats, Client, peek_backlog
from conquiet.queue.connection import as_text, drains_key
from conquiet.queue.stream import HANDED_BACK_IDLE_MS
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec

#: More messages that were handed back need not be counted: one is enough for a run.
_MOST_HANDED_BACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a drain of a stream, or of one partition, would find now, and who drains it."""

    backlog: BacklogStats
    #: Messages for the next drain; `None` if there are some and their number is unknown.
    count: int | None
    #: The consumers that are alive, by their heartbeats or leases.
    live: frozenset[str]

    @property
    def in_flight(self) -> int:
        """Messages that are pending at consumers that are alive."""
        return sum(consumer.pending for consumer in self.backlog.consumers if consumer.name in self.live)

    @property
    def failed(self) -> int:
        """Messages that are pending, for a recovery or until their next attempt is due."""
        for_the_next_drain = (self.count or 0) - (_undelivered(self.backlog) or 0)
        return max(0, self.backlog.pending - self.in_flight - for_the_next_drain)

    @property
    def trimmed(self) -> int:
        """Messages that the group was never given and that are no longer in the stream, where all are."""
        return (self.backlog.lag or 0) if self.backlog.oldest_undelivered_age_ms is None else 0


def waiting_in_stream(client: Client, spec: DrainSpec) -> Waiting:
    """Undelivered messages, and pending ones for the next drain: left by the dead, handed back, replayed."""
    backlog = peek_backlog(client, stream=spec.stream, group=spec.group)
    live, dead = _drains(client, spec)
    takers = dead | {"replay"}
    left = sum(consumer.pending for consumer in backlog.consumers if consumer.name in takers)
    if backlog.pending > left:
        since_1970 = HANDED_BACK_IDLE_MS // 2
        rows: list[dict[str, Any]] = client.xpending_range(
            spec.stream, spec.group, "-", "+", _MOST_HANDED_BACK, idle=since_1970
        )
        left += sum(as_text(row["consumer"]) not in takers for row in rows)
    return Waiting(backlog=backlog, count=_sum(_undelivered(backlog), left), live=live)


def waiting_in_partitions(client: Client, spec: TopicDrainSpec) -> dict[int, Waiting]:
    """The same of each partition that the topic has now, with retries and delayed messages that are due."""
    topic = Topics(client).open(spec.topic)
    owners = group_owners(topic, spec.group).partitions
    now_ms = server_ms(topic)
    parts = {}
    for partition, backlog in _partition_backlogs(topic, spec).items():
        retries = topic.keys.waiting(spec.group, partition)
        due = topic.call("ZCOUNT", retries, "-inf", now_ms)
        # What is pending and waits for no retry was left by an owner that died, or is in a handler.
        due += max(0, backlog.pending - topic.call("ZCARD", retries))
        due += topic.call("ZCOUNT", topic.keys.delayed(partition), "-inf", now_ms)
        owner = owners[partition].owner
        live = frozenset() if owner is None else frozenset({owner})
        parts[partition] = Waiting(backlog=backlog, count=_sum(_undelivered(backlog), due), live=live)
    return parts


def _undelivered(backlog: BacklogStats) -> int | None:
    # The server counts what was trimmed before it was delivered; only an entry that is there can be read.
    return 0 if backlog.oldest_undelivered_age_ms is None else backlog.lag


def _sum(undelivered: int | None, pending: int) -> int | None:
    return None if undelivered is None else undelivered + pending


def _drains(client: Client, spec: DrainSpec) -> tuple[frozenset[str], frozenset[str]]:
    """The consumers whose drains live, and those whose drains have died, as join.lua would find."""
    seconds, microseconds = client.time()
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    live, dead = set(), set()
    records: dict[bytes | str, bytes | str] = client.hgetall(drains_key(spec.stream, spec.group))
    for name, record in records.items():
        expires, _, of_whom = as_text(record).partition(" ")
        if expires.isdecimal() and int(expires) > now_ms:
            live.add(as_text(name))
        elif not of_whom.startswith("ended "):
            dead.add(as_text(name))
    return frozenset(live), frozenset(dead)


def partition_backlogs(client: Client, spec: TopicDrainSpec) -> dict[int, BacklogStats]:
    """The backlog of each partition that the topic has now, which may be more than the spec has."""
    return _partition_backlogs(Topics(client).open(spec.topic), spec)


def _partition_backlogs(topic: Topic, spec: TopicDrainSpec) -> dict[int, BacklogStats]:
    return {
        partition: peek_backlog(topic.client, stream=topic.keys.stream(partition), group=spec.group)
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
