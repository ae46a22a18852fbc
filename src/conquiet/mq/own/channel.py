"""PartitionChannel: a leased partition as a channel; what fails is retried or becomes a dead letter."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from conquiet.consume.byte_budget import ByteBudget
from conquiet.consume.channel import KeyOf, described_entry
from conquiet.consume.outcome import Outcome, Settlement
from conquiet.consume.report import Elsewhere
from conquiet.errors import LeaseLostError, MalformedEntry
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.entries import Batch
from conquiet.mq.own.metrics import PartitionMetrics
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.redeliveries import Redeliveries, in_order
from conquiet.mq.own.room import Room
from conquiet.mq.own.settler import Settler
from conquiet.mq.own.waiting import Waiting
from conquiet.queue.connection import longest_block_ms
from conquiet.queue.ends import EndWatch

_log = MessageLog(logging.getLogger(__name__))

#: What a message that waits may keep in memory.
_SMALL_BYTES = 64 << 10


class PartitionChannel:
    """One owned partition: what earlier owners and dead readers left, retries that are due, new messages.

    Lives as long as its lease. One thread reads and settles; another one renews the lease and moves
    `lease_valid_until` on.
    """

    is_shared = False
    key_of: KeyOf | None = attrgetter("key")
    #: Only the owner has messages of a partition.
    elsewhere = Elsewhere()

    def __init__(
        self,
        partition: LeasedPartition,
        config: ConsumerConfig,
        ends: EndWatch,
        budget: ByteBudget | None = None,
    ) -> None:
        self.partition = partition
        self._config, self._ends = config, ends
        self._rules = config.settlement_rules()
        longest = longest_block_ms(partition.topic.client, partition.stream) or config.block_ms
        self._block_ms = min(config.block_ms, longest)
        self._metrics = PartitionMetrics(partition.labels)
        #: `waiting.wake()` lets a read that waits return, from anywhere.
        self.waiting = Waiting(partition.topic, partition.stream, partition.group)
        #: Entry id and delivery count of all that is read and not settled; read by the thread that renews.
        self.in_flight: dict[str, int] = {}
        #: The budget is one for all partitions of a consumer.
        self.room = Room(budget or ByteBudget(config.max_bytes), self.waiting)
        self._redeliveries = Redeliveries(partition, config, self._metrics, self.in_flight)
        self._blocked = self._redeliveries.blocked
        self._settler = Settler(partition, self._metrics, self.in_flight, self._redeliveries, self.room)
        #: Until when, by `lease_clock`, the lease is certainly held.
        self.lease_valid_until = 0.0
        self.where, self.stream = partition.where, partition.stream
        self.max_outage_s = config.max_outage_s
        self.max_outages_of_message = config.retry.max_attempts
        self.claimed_by_others, self.is_caught_up = 0, False

    @property
    def can_settle(self) -> bool:
        """As `Channel.can_settle`."""
        return self.partition.is_usable

    @property
    def has_worked(self) -> bool:
        """Whether something was settled, or nothing was found to read: the partition can be worked on."""
        return self._settler.has_worked

    def check_lease(self) -> None:
        """Raise a `LeaseLostError` if the lease has expired or may have."""
        if lease_clock() >= self.lease_valid_until:
            raise self.partition.lost()

    def read(self, settlements: Sequence[Settlement], size: int, wait_ms: int | None) -> Batch:
        """As `Channel.read`; never `None`: a partition has no end."""
        max_bytes = self.room.ask()
        if not max_bytes:
            self.settle(settlements)
            settlements = ()
            max_bytes = self.room.wait(min(self._block_ms, wait_ms or self._block_ms))
        if not max_bytes:
            self.is_caught_up = False
            return Batch()
        batch = Batch()
        try:
            batch = self._read(settlements, size, max_bytes)
        finally:
            self.room.report(batch.sizes)
        if not batch and self.is_caught_up:
            until_due_ms = int((self._redeliveries.next_at - time.monotonic()) * 1000)
            block_ms = max(1, min(self._block_ms, until_due_ms, wait_ms or self._block_ms))
            if self._blocked.is_full(self._config.max_parked):
                self.waiting.sleep(block_ms)
            else:
                self.waiting.for_new(batch.last_delivered, block_ms)
        return batch

    def _read(self, settlements: Sequence[Settlement], size: int, max_bytes: int) -> Batch:
        unsettled = list(settlements)

        def settle_first() -> None:
            self.settle(unsettled)
            unsettled.clear()

        again = self._redeliveries.next(size, max_bytes, settle_first)
        self.is_caught_up = again is None
        if again is not None:
            return again
        is_full = self._blocked.is_full(self._config.max_parked)
        batch = self._settler.settle_and_read(unsettled, 0 if is_full else size, max_bytes)
        self._redeliveries.unloaded.add(batch.unloaded)
        self.in_flight |= {msg.id: msg.delivery_count for msg in (*batch.messages, *batch.unloaded)}
        if batch.messages:
            self._ends.seen(self.stream, batch.messages[-1].id, batch.messages[-1].data)
        return batch

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """As `Channel.settle`, all in one script."""
        if settlements:
            self._settler.settle_and_read(settlements, 0)

    def next_message(self, queued: deque[MqMessage]) -> MqMessage | None:
        """As `Channel.next_message`; with strict ordering, one whose key waits for a retry is parked."""
        self.check_lease()
        queued.extendleft(reversed(self._redeliveries.freed))
        self._redeliveries.freed.clear()
        if self._blocked and self._blocked.park(queued[0]):
            queued.popleft()
            return None
        msg = queued[0] if queued[0].is_loaded else self._redeliveries.unloaded.load_one(queued[0])
        # Not before: what cannot be loaded now is handed back with the others.
        queued.popleft()
        if msg is not None:
            self.room.begin(msg)
        return msg

    def set_aside(self, msg: MqMessage) -> None:
        """As `Channel.set_aside`: later ones of its key are parked."""
        self._blocked.block(msg.id, msg.key)

    def take_back(self, msg: MqMessage) -> Sequence[MqMessage]:
        """As `Channel.take_back`."""
        return self._blocked.unblock(msg.id, msg)

    def begin(self, msg: MqMessage) -> Settlement | None:
        """As `Channel.begin`: what was taken over or waited for its retry is counted when it begins."""
        if msg.is_counted:
            return None
        msg.count()
        return Settlement("begin", msg.id, msg.delivery_count - 1)

    def settlement_without_handler(self, msg: MqMessage) -> Settlement | None:
        """As `Channel.settlement_without_handler`; copies that were requeued for another group are acked."""
        if msg.delivery_count == 1 and msg.envelope.for_group is None and not msg.envelope.attempt:
            return None
        return self._rules.without_handler(msg, _now_ms())

    def decide(self, msg: MqMessage, result: Outcome | Exception, seconds: float) -> Settlement:
        """As `Channel.decide`: done, retried by the policy, or a dead letter."""
        self.room.end(msg.id)
        if isinstance(result, LeaseLostError):
            raise result
        if isinstance(result, MemoryError):
            self.room.shrink()
        now_ms, sent_ms = _now_ms(), msg.sent_ms
        self._metrics.handled(seconds, max(0, now_ms - sent_ms) / 1000 if sent_ms else None)
        settlement = self._rules.for_result(msg, result, now_ms)
        settlement.is_large = settlement.kind != "ack" and len(msg.data) > _SMALL_BYTES
        if settlement.kind == "retry" and self._config.ordering == "strict":
            self._blocked.block(msg.id, msg.as_delivered().key)
        return settlement

    def decide_malformed(self, entry: MalformedEntry) -> Settlement:
        """As `Channel.decide_malformed`: a dead letter with its bytes; a later version's is handed back."""
        self.in_flight[entry.id] = entry.delivery_count
        partition, count = self.partition, entry.hand_back_count
        if count is None:
            return self._rules.for_malformed(entry, partition.where, _now_ms())
        emit("conquiet_mq_later_version_total", 1, *partition.labels)
        text, extra = "entry %s of %s stays pending for a consumer of a later version: %s", partition.extra
        _log.warning(text, entry.id, partition, entry.reason, extra=extra(message_id=entry.id))
        return Settlement("hand_back", entry.id, entry.delivery_count, count, outcome="handed_back")

    def hand_back(self, queued: Sequence[MqMessage]) -> int:
        """As `Channel.hand_back`, with what is parked; the next owner begins with them."""
        self.room.leave()
        messages = in_order((*queued, *self._redeliveries))
        settlements = [
            Settlement("hand_back", msg.id, self.in_flight[msg.id], msg.delivery_count - 1)
            for msg in messages
            if msg.id in self.in_flight
        ]
        self.settle(settlements)
        self._metrics.flush()
        given = sum(not settlement.is_refused for settlement in settlements)
        self.claimed_by_others += len(messages) - given
        return given

    def as_delivered(self, msg: MqMessage) -> MqMessage:
        """As `Channel.as_delivered`."""
        self.room.end(msg.id)
        delivered = msg.as_delivered()
        # It may wait for long; a large one is loaded again when its turn comes.
        return delivered if len(msg.data) <= _SMALL_BYTES else delivered.unloaded()

    def count_unavailable(self, messages: int) -> None:
        """As `Channel.count_unavailable`."""
        self._metrics.count("conquiet_mq_database_unavailable_total", messages)

    def described(self, delivered: MqMessage | MalformedEntry) -> tuple[str, int]:
        """As `Channel.described`."""
        return described_entry(delivered, self)

    def __str__(self) -> str:
        return str(self.partition)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
