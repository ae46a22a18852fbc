"""drain_partition: own one partition, settle what is there up to a limit, give it back."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sqlalchemy import Engine

from conquiet.arguments import check_positive_int, check_positive_seconds
from conquiet.db import Inbox
from conquiet.errors import ConquietError, PartitionBusyError, QueueError, TopicError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.clock import lease_clock
from conquiet.mq.envelope import MqMessage
from conquiet.mq.keys import check_topic_part
from conquiet.mq.metrics import count_acquired
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.leases import Lease, LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.running import MessageRun, MqHandler, check_mq_handler
from conquiet.mq.own.settlement import Failure, Settlement
from conquiet.mq.own.worker import PartitionWorker
from conquiet.mq.own.worker_config import WorkerConfig
from conquiet.mq.send.delayed import move_delayed
from conquiet.mq.topics import Topic
from conquiet.queue.message import entry_id_order

_log = MessageLog(logging.getLogger(__name__))

PartitionStopReason = Literal["max_messages", "max_duration", "max_failures", "idle", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrainReport:
    """What a drain of one partition did, small enough to hand between tasks."""

    topic: str
    group: str
    partition: int
    #: Settled for good: the handler succeeded, or the inbox had the message.
    handled: int = 0
    #: Of these, the ones that the inbox had.
    skipped: int = 0
    #: Failed, and wait for their next attempt.
    retried: int = 0
    dead_lettered: int = 0
    #: Read and not begun: the partition's next owner begins with them.
    handed_back: int = 0
    first_id: str | None = None
    last_id: str | None = None
    seconds: float = 0.0
    stopped_by: PartitionStopReason = "idle"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    def to_json(self) -> str:
        """The JSON form."""
        return json.dumps(self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    max_messages: int
    max_duration_s: float | None
    max_failures: int | None
    idle_ms: int
    should_stop: Callable[[], bool] | None

    def __post_init__(self) -> None:
        for name in ("max_messages", "idle_ms"):
            check_positive_int(name, getattr(self, name))
        if self.max_failures is not None:
            check_positive_int("max_failures", self.max_failures)
        if self.max_duration_s is not None:
            check_positive_seconds("max_duration_s", self.max_duration_s)


def drain_partition(
    topic: Topic,
    partition: int,
    group: str,
    handler: MqHandler,
    engine: Engine | None = None,
    *,
    max_messages: int,
    max_duration_s: float | None = None,
    max_failures: int | None = None,
    idle_ms: int = 1_000,
    inbox: Inbox | None = None,
    config: ConsumerConfig | None = None,
    should_stop: Callable[[], bool] | None = None,
    replaces: Sequence[str] = (),
) -> PartitionDrainReport:
    """Own the partition for as long as it takes to handle up to `max_messages`, as `PartitionConsumer` would.

    First what earlier owners left, then due retries, then new messages; handlers run in the calling thread.
    A failing message is retried later or dead-lettered by `config.retry`, and never ends the drain by itself.

    Args:
        max_duration_s: no message is begun after this time.
        max_failures: how many failed attempts end the drain.
        idle_ms: how long the partition must be empty for the drain to end; retries that wait do not count.
        should_stop: asked between messages.
        replaces: owners that are known to be dead, as earlier tries of the same task: their lease is taken
            at once instead of after its time.

    Raises:
        PartitionBusyError: somebody else owns the partition.
        LeaseLostError: the lease was lost meanwhile; what was not settled is handled again by its new owner.
    """
    check_topic_part("group", group)
    check_mq_handler(handler, has_engine=engine is not None)
    if partition not in topic.partitions:
        raise TopicError(topic.name, f"has no partition {partition}, only 0 to {topic.partition_count - 1}")
    if inbox is not None and engine is None:
        raise ValueError("inbox needs an engine")
    limits = _Limits(
        max_messages=max_messages,
        max_duration_s=max_duration_s,
        max_failures=max_failures,
        idle_ms=idle_ms,
        should_stop=should_stop,
    )
    if inbox is not None and engine is not None:
        inbox.create_table(engine)
    drain = _PartitionDrain(topic, partition, group, config or ConsumerConfig(), limits)
    return drain.run(handler, engine, inbox, replaces)


class _CountedRun:
    """Runs the messages of one drain and remembers how many, which, and how they ended."""

    def __init__(self, run: MessageRun) -> None:
        self._run = run
        self.begun = 0
        self.failed = 0
        #: The first and the last.
        self.ids: list[str] = []

    def __call__(self, msg: MqMessage, failure: Failure) -> Settlement:
        settlement = self._run(msg, failure)
        # Only now: a message that waits for the database is begun more than once.
        self.begun += 1
        self.ids = [*self.ids[:1], msg.id]
        self.failed += settlement.kind != "ack"
        return settlement

    def release(self) -> None:
        self._run.release()


class _PartitionDrain:
    """One drain, from its lease to its report; used once."""

    def __init__(
        self, topic: Topic, partition: int, group: str, config: ConsumerConfig, limits: _Limits
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._group = group
        self._config = config
        self._limits = limits
        self._leases = LeaseStore(topic, group)
        self._started = time.monotonic()
        self._stopped_by: PartitionStopReason | None = None
        self._has_ended = threading.Event()

    def run(
        self, handler: MqHandler, engine: Engine | None, inbox: Inbox | None, replaces: Sequence[str]
    ) -> PartitionDrainReport:
        """Acquire, drain, release."""
        # Longer than later on: there is no lease yet that has to be renewed.
        move_delayed(self._topic, budget_s=5.0)
        asked = lease_clock()
        lease = self._acquired(replaces)
        try:
            leased = LeasedPartition(self._topic, self._group, lease, self._leases)
            leased.create_group()
            rules = self._config.settlement_rules()
            run = MessageRun(
                handler, rules, engine=engine, inbox=inbox, check_lease=lambda: worker.check_lease()
            )
            gate = threading.Event()
            gate.set()
            outage = {"max_outage_s": self._config.max_outage_s}
            self._counted = _CountedRun(run)
            worker = PartitionWorker(leased, self._counted, rules, self._worker_config(), gate, **outage)
            worker.lease_is_certain_until = self._config.certain_until(asked)
            with run:
                self._work(worker, lease)
        finally:
            self._release(lease)
        return self._report(worker, run)

    def _acquired(self, replaces: Sequence[str]) -> Lease:
        owner, ttl_ms = self._config.consumer_name, self._config.lease_ttl_ms
        lease = self._leases.acquire(self._partition, owner, ttl_ms, replaces=replaces)
        if lease is None:
            raise PartitionBusyError(self._topic.name, partition=self._partition, group=self._group)
        count_acquired(*self._labels)
        return lease

    def _worker_config(self) -> WorkerConfig:
        asked = self._config.worker
        return replace(
            asked,
            batch_size=min(asked.batch_size, self._limits.max_messages),
            block_ms=min(asked.block_ms, self._limits.idle_ms),
        )

    def _work(self, worker: PartitionWorker, lease: Lease) -> None:
        worker.should_stop = lambda: self._is_over(worker)
        keeper = threading.Thread(
            target=self._keep, args=(worker, lease), name=f"conquiet-drain-{worker}", daemon=True
        )
        keeper.start()
        try:
            worker.work()
        finally:
            self._has_ended.set()
            keeper.join()

    def _keep(self, worker: PartitionWorker, lease: Lease) -> None:
        """Keep the lease and what is in flight alive, until the drain has ended."""
        while not self._has_ended.wait(self._config.tick_s):
            asked = lease_clock()
            try:
                in_flight = worker.settling.in_flight.copy().items()
                is_kept = self._leases.renew(lease, self._config.lease_ttl_ms, in_flight)
                worker.lease_is_certain_until = self._config.certain_until(asked) if is_kept else 0.0
                move_delayed(self._topic)
            except ConquietError as error:
                # The worker stops by itself when its time is over without a renewal.
                told = worker.partition.extra()
                _log.warning("the lease on %s could not be kept: %s", worker, error, extra=told)

    def _is_over(self, worker: PartitionWorker) -> bool:
        self._stopped_by = self._stopped_by or self._reason_to_stop(worker)
        return self._stopped_by is not None

    def _reason_to_stop(self, worker: PartitionWorker) -> PartitionStopReason | None:
        limits = self._limits
        now = time.monotonic()
        if limits.should_stop is not None and limits.should_stop():
            return "stop"
        if limits.max_failures is not None and self._counted.failed >= limits.max_failures:
            return "max_failures"
        if self._counted.begun >= limits.max_messages:
            return "max_messages"
        if limits.max_duration_s is not None and now - self._started >= limits.max_duration_s:
            return "max_duration"
        if worker.idle_since is not None and (now - worker.idle_since) * 1000 >= limits.idle_ms:
            return "idle"
        return None

    def _release(self, lease: Lease) -> None:
        try:
            self._leases.release(lease)
        except QueueError as error:
            topic, _, group = self._labels
            told = message_fields(topic=topic, group=group, partition=lease.partition, consumer=lease.owner)
            _log.warning(
                "the lease on partition %s stays until its time is over: %s",
                *(lease.partition, error),
                extra=told,
            )

    def _report(self, worker: PartitionWorker, run: MessageRun) -> PartitionDrainReport:
        settled = worker.settling.settled
        return PartitionDrainReport(
            topic=self._topic.name,
            group=self._group,
            partition=self._partition,
            handled=settled["ack"],
            skipped=run.skipped,
            retried=settled["retry"] + settled["requeue"],
            dead_lettered=settled["dead"],
            handed_back=settled["hand_back"],
            first_id=min(self._counted.ids, key=entry_id_order, default=None),
            last_id=max(self._counted.ids, key=entry_id_order, default=None),
            seconds=time.monotonic() - self._started,
            stopped_by=self._stopped_by or "stop",
        )

    @property
    def _labels(self) -> tuple[str, str, str]:
        return self._topic.name, str(self._partition), self._group
