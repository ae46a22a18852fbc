"""The backlog and the dead letters of a stream or topic: read, and nothing is changed or created."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conquiet.consume import dead_letter_stream
from conquiet.mq import DeadLetters, MqAdmin, Topic, Topics
from conquiet.mq.clock import server_ms
from conquiet.mq.deletion import buckets
from conquiet.mq.look.owners import group_owners
from conquiet.mq.look.stats import total_backlog
from conquiet.queue import BacklogStats, Client, peek_backlog
from conquiet.queue.connection import as_text, drains_key
from conquiet.queue.stream import HANDED_BACK_IDLE_MS
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec

#: More messages that were handed back need not be counted: one is enough for a run.
_MOST_HANDED_BACK = 100
#: The same of delayed messages that are due: the run of one partition adds those of all.
_MOST_DELAYED = 100
#: Where a replay leaves the messages of a plain stream pending, for the next drain.
_REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a drain of a stream, or of one partition, would find now, and who drains it."""

    backlog: BacklogStats
    #: Messages for the next drain; `None` if there are some and their number is unknown.
    count: int | None
    #: The consumers that are alive, by their heartbeats or leases.
    live: frozenset[str]
    #: Of them, those that came without a new entry: replayed dead letters, delayed messages that are due.
    returned: int = 0
    #: How far the server's clock is ahead of the one here.
    clock_ahead_ms: int = 0

    @property
    def in_flight(self) -> int:
        """Messages that are pending at consumers that are alive."""
        return sum(consumer.pending for consumer in self.backlog.consumers if consumer.name in self.live)

    @property
    def left(self) -> int:
        """Messages that are pending and for no drain yet: failed, or left by a consumer that none follows."""
        for_the_next_drain = (self.count or 0) - (_undelivered(self.backlog) or 0)
        return max(0, self.backlog.pending - self.in_flight - for_the_next_drain)

    @property
    def trimmed(self) -> int:
        """Messages that the group was never given and that are no longer in the stream, where all are."""
        return (self.backlog.lag or 0) if self.backlog.oldest_undelivered_age_ms is None else 0


def waiting_in_stream(client: Client, spec: DrainSpec) -> Waiting:
    """Undelivered messages, and pending ones for the next drain: left by the dead, handed back, replayed."""
    backlog = peek_backlog(client, stream=spec.stream, group=spec.group)
    now_ms, clock_ahead_ms = _clock(lambda: _server_ms(client))
    live, dead = _drains(client, spec, now_ms)
    takers = {_REPLAY} | (dead if spec.config.take_over_dead else frozenset())
    left = sum(consumer.pending for consumer in backlog.consumers if consumer.name in takers)
    if backlog.pending > left:
        since_1970 = HANDED_BACK_IDLE_MS // 2
        rows: list[dict[str, Any]] = client.xpending_range(
            spec.stream, spec.group, "-", "+", _MOST_HANDED_BACK, idle=since_1970
        )
        left += sum(as_text(row["consumer"]) not in takers for row in rows)
    return Waiting(
        backlog=backlog,
        count=_sum(_undelivered(backlog), left),
        live=live,
        returned=sum(consumer.pending for consumer in backlog.consumers if consumer.name == _REPLAY),
        clock_ahead_ms=clock_ahead_ms,
    )


def waiting_in_partitions(client: Client, spec: TopicDrainSpec) -> dict[int, Waiting]:
    """The same of each partition that the topic has now, with retries and delayed messages that are due."""
    topic = Topics(client).open(spec.topic)
    owners = group_owners(topic, spec.group).partitions
    now_ms, clock_ahead_ms = _clock(lambda: server_ms(topic))
    delayed = _due_by_partition(topic, spec.group, now_ms)
    parts = {}
    for partition, backlog in _partition_backlogs(topic, spec).items():
        retries = topic.keys.waiting(spec.group, partition)
        due = topic.call("ZCOUNT", retries, "-inf", now_ms)
        # What is pending and waits for no retry was left by an owner that died, or is in a handler.
        due += max(0, backlog.pending - topic.call("ZCARD", retries))
        owner = owners[partition].owner
        parts[partition] = Waiting(
            backlog=backlog,
            count=_sum(_undelivered(backlog), due + delayed[partition]),
            live=frozenset() if owner is None else frozenset({owner}),
            returned=delayed[partition],
            clock_ahead_ms=clock_ahead_ms,
        )
    return parts


def _due_by_partition(topic: Topic, group: str, now_ms: int) -> Counter[int]:
    """How many delayed messages for this group are due in each partition; of many, the first ones."""
    counts = {
        part[0]: topic.call("ZCOUNT", topic.keys.delayed(part[0]), "-inf", now_ms)
        for part in buckets(topic, topic.partitions)
    }
    if not any(counts.values()):
        return Counter()
    messages = MqAdmin(topic.client).delayed(topic, limit=_MOST_DELAYED)
    due = Counter(
        message.partition
        for message in messages
        if message.due_at_ms <= now_ms and message.partition is not None and message.group in (None, group)
    )
    if not due and sum(counts.values()) > len(messages):
        # All of those that were read are for other groups, and what is behind them is not known.
        due[next(partition for partition, count in counts.items() if count)] = 1
    return due


def _clock(read_server_ms: Callable[[], int]) -> tuple[int, int]:
    """The server's time, and how far it is surely ahead of the one here; negative if it is behind."""
    before_ms = int(time.time() * 1000)
    now_ms = read_server_ms()
    after_ms = int(time.time() * 1000)
    return now_ms, max(0, now_ms - after_ms) or min(0, now_ms - before_ms)


def _server_ms(client: Client) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def _undelivered(backlog: BacklogStats) -> int | None:
    # The server counts what was trimmed before it was delivered; only an entry that is there can be read.
    return 0 if backlog.oldest_undelivered_age_ms is None else backlog.lag


def _sum(undelivered: int | None, pending: int) -> int | None:
    return None if undelivered is None else undelivered + pending


def _drains(client: Client, spec: DrainSpec, now_ms: int) -> tuple[frozenset[str], frozenset[str]]:
    """The consumers whose drains live, and those whose drains have died, as join.lua would find."""
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
