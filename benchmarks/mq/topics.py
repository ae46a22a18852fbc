"""The work that both sides of an MQ comparison are given: a topic of one partition, and a database."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from sqlalchemy import Engine, delete

from benchmarks.bench import Bench
from benchmarks.databases import ORDERS
from benchmarks.errors import BenchmarkError
from benchmarks.workload import GROUP, orders
from conquiet import DrainLimits
from conquiet.consume.engine import DrainLoop
from conquiet.consume.handling import MessageHandling
from conquiet.mq import ConsumerConfig, Producer, Topic, Topics
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.queue.ends import EndWatch


@dataclass(frozen=True, slots=True)
class TopicWork:
    """One timed run's own topic; raw_engine and client are the raw side's."""

    topic: Topic
    client: redis.Redis
    engine: Engine
    raw_engine: Engine
    payloads: list[dict[str, Any]]

    @property
    def stream(self) -> str:
        return self.topic.keys.stream(0)

    @property
    def messages(self) -> int:
        return len(self.payloads)


@contextmanager
def empty_topic(bench: Bench, messages: int) -> Iterator[TopicWork]:
    """A topic to send to; at the end it must have all the messages."""
    with _topic_work(bench, messages) as work:
        yield work
        _expect("messages in the partition", work.client.xlen(work.stream), messages)


@contextmanager
def filled_topic(bench: Bench, messages: int) -> Iterator[TopicWork]:
    """A topic to consume; at the end every message must be settled."""
    with _topic_work(bench, messages) as work:
        Producer(work.client).send_many(work.topic.name, work.payloads)
        work.client.xgroup_create(work.stream, GROUP, "0-0")
        yield work
        _expect("messages pending", work.client.xpending(work.stream, GROUP)["pending"], 0)
        _expect("messages not delivered", work.client.xinfo_groups(work.stream)[0]["lag"], 0)


@contextmanager
def orders_to_insert(bench: Bench, messages: int) -> Iterator[TopicWork]:
    """A topic to consume into a table; at the end every message must have its row."""
    with filled_topic(bench, messages) as work:
        yield work
        with work.raw_engine.begin() as connection:
            _expect("rows in the table", connection.execute(delete(ORDERS)).rowcount, messages)


def work_through(
    work: TopicWork, handler: Callable[..., None], messages: int, *, engine: Engine | None = None
) -> None:
    """One worker of partition 0, as `PartitionConsumer` runs it, for so many messages."""
    leases = LeaseStore(work.topic, GROUP)
    lease = leases.acquire(0, "bench", 600_000)
    if lease is None:
        raise BenchmarkError("the partition has another owner")
    left = messages

    def count_down(*arguments: Any) -> None:
        nonlocal left
        handler(*arguments)
        left -= 1
        if not left:
            loop.stop()

    partition = LeasedPartition(work.topic, GROUP, lease, leases)
    channel = PartitionChannel(partition, ConsumerConfig(consumer_name="bench"), EndWatch(work.client))
    channel.lease_valid_until = float("inf")
    limits = DrainLimits(max_messages=None, idle_ms=None, max_failures=None)
    with MessageHandling(count_down, engine, before_commit=channel.check_lease) as handling:
        loop = DrainLoop(channel, handling, limits)
        loop.run()
    leases.release(lease)


@contextmanager
def _topic_work(bench: Bench, messages: int) -> Iterator[TopicWork]:
    engines = bench.database("sqlite")
    topics = Topics(bench.client)
    topic = topics.create(f"bench-{secrets.token_hex(4)}", 1)
    yield TopicWork(topic, bench.client, engines.ours, engines.raw, orders(messages))
    topics.delete(topic.name)


def _expect(what: str, found: int | None, expected: int) -> None:
    if found != expected:
        raise BenchmarkError(f"{what}: {found} instead of {expected}")
