"""Redeliveries: what comes again before new messages: taken over, loaded later, due, or freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.blocked_keys import BlockedKeys
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.due_retries import DueRetries
from conquiet.mq.own.entries import Batch
from conquiet.mq.own.metrics import PartitionMetrics
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.take_overs import TakeOvers, log_vanished
from conquiet.mq.own.unloaded import Unloaded
from conquiet.queue.message import entry_id_order


class Redeliveries:
    """Those of one owned partition; only the thread that reads uses them."""

    def __init__(
        self,
        partition: LeasedPartition,
        config: ConsumerConfig,
        metrics: PartitionMetrics,
        in_flight: dict[str, int],
    ) -> None:
        self._partition = partition
        self._is_strict = config.ordering == "strict"
        self._metrics = metrics
        #: Entry id and delivery count of all that is read and not settled.
        self._in_flight = in_flight
        self._take_overs = TakeOvers(partition, config.claim_idle_ms)
        self.retries = DueRetries(partition)
        self.blocked = BlockedKeys()
        self.unloaded = Unloaded(partition, in_flight)
        #: Parked behind a message that another consumer has settled meanwhile.
        self.freed: list[MqMessage] = []

    @property
    def next_at(self) -> float:
        """In monotonic time, when to look for the next ones."""
        return min(self.retries.next_at, self._take_overs.next_at)

    def next(self, size: int, max_bytes: int, settle_first: Callable[[], None]) -> Batch | None:
        """What comes before new messages, `None` if nothing does."""
        if self.unloaded:
            settle_first()
            return self.unloaded.load(size, max_bytes)
        if self._take_overs.is_due:
            settle_first()
            taken = self._take_over(size, max_bytes)
            if taken or self._take_overs.has_more:
                # All pages before anything else: what comes later in the stream is handled later.
                return taken
        if self.freed or self.retries.are_due:
            settle_first()
            messages, self.freed = self.freed, []
            batch = Batch()
            if not messages:
                due = self.retries.take(size, max_bytes)
                batch = due.batch
                self._in_flight |= {msg.id: msg.delivery_count - 1 for msg in batch.messages}
                messages = self.blocked.unblock_all(due.vanished, batch.messages)
            batch = self.unloaded.add_rest(replace(batch, messages=messages))
            if batch or self.unloaded:
                self.retries.have_had_their_turn = True
                return batch
        self.retries.have_had_their_turn = False
        return None

    def __iter__(self) -> Iterator[MqMessage]:
        """What was read and is kept back."""
        return iter((*self.freed, *self.unloaded, *self.blocked))

    def _take_over(self, size: int, max_bytes: int) -> Batch:
        page = self._take_overs.take_page(size, self._in_flight, max_bytes)
        self._metrics.count("conquiet_mq_claimed_total", len(page.batch.messages))
        if self._is_strict:
            for entry_id, key in zip(page.waiting, self._partition.keys_of(page.waiting), strict=True):
                self.blocked.block(entry_id, key)
        self._in_flight |= {msg.id: msg.delivery_count - 1 for msg in page.batch.messages}
        taken, self.freed = self.freed, []
        gone = list(page.vanished)
        if not self._take_overs.has_more:
            # Acked and taken out of the waiting set by hand: nothing else opens their keys.
            heads = [entry_id for entry_id in self.blocked.heads if entry_id not in self._in_flight]
            gone += self._partition.find_gone(heads)
            log_vanished(self._partition, gone[len(page.vanished) :])
        # Also what waited for its retry, until somebody took it out of the waiting set.
        taken += self.blocked.unblock_all(gone, page.batch.messages)
        return self.unloaded.add_rest(replace(page.batch, messages=in_order(taken)))


def in_order(messages: Iterable[MqMessage]) -> list[MqMessage]:
    """By entry id."""
    return sorted(messages, key=lambda msg: entry_id_order(msg.id))
