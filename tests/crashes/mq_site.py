"""The scene of one crash in the MQ: its own topic of two partitions and its own database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from sqlalchemy import Column, Integer, MetaData, String, Table, insert

from conquiet import DbSession, DrainLimits
from conquiet.consume.engine import DrainLoop
from conquiet.consume.handler_kinds import new_handling
from conquiet.consume.outcome import Settlement
from conquiet.errors import QueueError
from conquiet.mq import ConsumerConfig, DeadLetter, MqMessage, Producer, RetryPolicy, Topics
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.consumer_config import DEFAULT_MAX_BYTES
from conquiet.mq.own.entries import Batch
from conquiet.mq.own.leases import Lease, LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.scripts import move_due
from conquiet.queue import open_client
from conquiet.queue.config import CLAIM_IDLE_MS
from conquiet.queue.ends import EndWatch
from tests.crashes.site import INBOX, Address, as_handler, engine_at, handler_engine
from tests.services import Client

GROUP = "billing"
PARTITIONS = 2
HOUR_MS = 3_600_000
LEASE_TTL_MS = 60_000
#: Enough that no message is given up for being at hand in every crash on the way.
POLICY = RetryPolicy(max_attempts=5, backoff="fixed", base_delay_ms=0)

#: One row per effect, in order; nothing is unique but `id`, so that doubles can be seen.
effects = Table(
    "effects",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("key", String(16)),
    Column("number", Integer),
    Column("attempt", Integer),
)

Clock = Callable[[], int]


class PlannedError(Exception):
    """The failure of a handler that a scenario wants."""


class Rounds(PartitionChannel):
    """A channel that stops its loop with the last round; a round is one read and what comes of it."""

    is_last: Callable[[], bool]
    loop: DrainLoop[MqMessage]

    def read(self, settled: Sequence[Settlement], size: int, wait_ms: int | None) -> Batch:
        """Called by the loop at the beginning of a round."""
        if self.is_last():
            self.loop.stop()
        return super().read(settled, size, wait_ms)


class MqSite:
    """One process' own clients of an address; `ahead_ms` sets its clock: leases are over, retries are due."""

    def __init__(self, address: Address, *, client_name: str, ahead_ms: int = 0) -> None:
        self.url = address.url
        self.client: Client = open_client(address.url, client_name=client_name, decode_responses=True)
        self.engine = engine_at(address.database)
        self.engine.connect().close()
        self.handler_engine = handler_engine(address)
        self.inbox: Any = INBOX if address.has_inbox else None
        self.topic = Topics(self.client).create(address.stream.replace(":", "-"), PARTITIONS)
        self.clock: Clock | None = None if ahead_ms == 0 else lambda: time.time_ns() // 1_000_000 + ahead_ms
        #: One for each clock: to begin once more with the same lease, a process needs the same store.
        self._leases: dict[Clock | None, LeaseStore] = {}

    worker: DrainLoop[MqMessage]

    def create_tables(self) -> None:
        """Create what an application creates before it consumes."""
        effects.create(self.engine)
        if self.inbox is not None:
            self.inbox.create_table(self.engine)

    def send(self, *numbers: int, key: str = "a", **more: object) -> None:
        """Send messages of one key to the first partition; `more` says what their handler does with them."""
        for number in numbers:
            Producer(self.client).send(
                self.topic.name, {"key": key, "number": number, **more}, key=key, partition=0
            )

    def entry_ids(self) -> list[str]:
        """What is in the partitions."""
        streams = [self.topic.keys.stream(partition) for partition in self.topic.partitions]
        return [entry_id for stream in streams for entry_id, _ in self.client.xrange(stream)]

    def handle(self, msg: MqMessage, session: DbSession) -> DeadLetter | None:
        """The handler of every scenario: one effect, unless the message says otherwise."""
        row = {"key": msg.key, "number": msg.payload["number"], "attempt": msg.attempt}
        session.execute(insert(effects), row)
        if msg.payload.get("stops") and self.clock is None:
            self.worker.stop()
        if msg.payload.get("frees") and self.clock is None:
            self.settle_by_hand(msg.payload["frees"])
        if msg.attempt <= msg.payload.get("fails", 0):
            raise PlannedError
        if msg.payload.get("dies") and msg.envelope.replayed_from is None:
            return DeadLetter("planned")
        return None

    def settle_by_hand(self, entry_id: str) -> None:
        """As an administrator does with a message that waits for its retry."""
        keys = self.topic.keys
        with self.client.pipeline() as pipeline:
            pipeline.xack(keys.stream(0), GROUP, entry_id)
            pipeline.zrem(keys.waiting(GROUP, 0), entry_id)
            pipeline.hdel(keys.failures(GROUP, 0), entry_id)
            pipeline.execute()

    def acquire(self, owner: str, partition: int = 0, *, clock: Clock | None = None) -> LeasedPartition:
        """Own a partition, as of another time if a clock is given."""
        leases = self._leases_at(clock or self.clock)
        lease = leases.acquire(partition, owner, LEASE_TTL_MS)
        assert isinstance(lease, Lease), f"{owner} cannot acquire partition {partition}"
        leased = LeasedPartition(self.topic, GROUP, lease, leases)
        with self.topic.visible("XGROUP CREATE", group=GROUP):
            leased.create_group()
        return leased

    def work(
        self,
        owner: str,
        partition: int = 0,
        *,
        is_last_round: Callable[[], bool],
        mode: Literal["in_place", "requeue"] = "in_place",
        ordering: Literal["default", "strict"] = "default",
        max_bytes: int = DEFAULT_MAX_BYTES,
        claim_idle_ms: int = CLAIM_IDLE_MS,
    ) -> None:
        """Do what the consumer's thread of one partition does, without the threads."""
        leased = self.acquire(owner, partition)
        config = ConsumerConfig(
            consumer_name=owner,
            retry=POLICY,
            retry_mode=mode,
            ordering=ordering,
            block_ms=1,
            max_bytes=max_bytes,
            claim_idle_ms=claim_idle_ms,
        )
        channel = Rounds(leased, config, EndWatch(leased.topic.client))
        channel.is_last = is_last_round
        channel.lease_valid_until = math.inf
        limits = DrainLimits(max_messages=None, idle_ms=None, max_failures=None, batch_size=2)
        engine = self.handler_engine
        handler = as_handler(self.handle, engine)
        with new_handling(handler, engine, self.inbox, before_commit=channel.check_lease) as handling:
            self.worker = channel.loop = DrainLoop(channel, handling, limits)
            self.worker.run()
        self._leases_at(self.clock).release(leased.lease)

    def work_rounds(self, rounds: int, *, owner: str = "worker-1", **how: Any) -> None:
        """Work some rounds; after an error of Redis begin once more, as the consumer does."""
        try:
            self.work(owner, is_last_round=_countdown(rounds), **how)
        except QueueError:
            self.work(owner, is_last_round=_countdown(rounds), **how)

    def move_delayed(self) -> None:
        """Add what is due to its partition, as every consumer of the topic does now and then."""
        move_due(self.topic, self.topic.partitions, 100, now_ms=None if self.clock is None else self.clock())

    def _leases_at(self, clock: Clock | None) -> LeaseStore:
        return self._leases.setdefault(clock, LeaseStore(self.topic, GROUP, now_ms=clock))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.engine.dispose()


def _countdown(rounds: int) -> Callable[[], bool]:
    left = iter(range(rounds))
    return lambda: next(left, None) is None
