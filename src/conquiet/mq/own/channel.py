"""PartitionChannel: a leased partition as a channel; what fails is retried or becomes a dead letter."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from conquiet.consume.byte_budget import ByteBudget
from conquiet.consume.channel import KeyOf
from conquiet.consume.outcome import Outcome, Settlement
from conquiet.consume.report import Elsewhere
from conquiet.errors import LeaseLostError, MalformedEntry
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit
from conquiet.mq.own.blocked_keys import BlockedKeys
from conquiet.mq.own.config import ConsumerConfig
from conquiet.mq.own.due_retries import DueRetries
from conquiet.mq.own.metrics import PartitionMetrics
from conquiet.mq.own.partition import Batch, LeasedPartition
from conquiet.mq.own.settlement import SettlementRules
from conquiet.mq.own.take_overs import TakeOvers, log_vanished
from conquiet.mq.own.unloaded import Unloaded
from conquiet.mq.own.waiting import Waiting
from conquiet.queue.connection import longest_block_ms
from conquiet.queue.ends import EndWatch
from conquiet.queue.message import entry_id_order

_log = MessageLog(logging.getLogger(__name__))

#: How often a read asks that has to wait until other partitions have less in memory.
_ASK_EVERY_MS = 20
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
        #: One for all partitions of a consumer.
        self._budget = budget or ByteBudget(config.max_bytes)
        self._rules = config.settlement_rules()
        self._blocked = BlockedKeys()
        #: Parked behind a message that another consumer has settled meanwhile.
        self._freed: list[MqMessage] = []
        self._take_overs = TakeOvers(partition, config.claim_idle_ms)
        self._retries = DueRetries(partition)
        longest = longest_block_ms(partition.topic.client, partition.stream) or config.block_ms
        self._block_ms = min(config.block_ms, longest)
        self._metrics = PartitionMetrics(partition.labels)
        #: `waiting.wake()` lets a read that waits return, from anywhere.
        self.waiting = Waiting(partition.topic, partition.stream, partition.group)
        #: Entry id and delivery count of all that is read and not settled; read by the thread that renews.
        self.in_flight: dict[str, int] = {}
        self._unloaded = Unloaded(partition, self.in_flight)
        #: Bytes of what may be in handlers, by entry id.
        self._in_handlers: dict[str, int] = {}
        #: Until when, by `lease_clock`, the lease is certainly held.
        self.lease_valid_until = 0.0
        #: Whether something was settled, or nothing was found to read: the partition can be worked on.
        self.has_worked = False
        self.where, self.stream = partition.where, partition.stream
        self.max_outage_s = config.max_outage_s
        self.max_outages_of_message = config.retry.max_attempts
        self.claimed_by_others, self.is_caught_up = 0, False

    @property
    def can_settle(self) -> bool:
        """As `Channel.can_settle`."""
        return self.partition.is_usable

    def check_lease(self) -> None:
        """Raise a `LeaseLostError` if the lease has expired or may have."""
        if lease_clock() >= self.lease_valid_until:
            raise self.partition.lost()

    def read(self, settlements: Sequence[Settlement], size: int, wait_ms: int | None) -> Batch:
        """As `Channel.read`; never `None`: a partition has no end."""
        in_handlers = sum(self._in_handlers.values())
        max_bytes = self._budget.ask(self, in_handlers)
        if not max_bytes:
            self.settle(settlements)
            settlements = ()
            max_bytes = self._wait_for_room(min(self._block_ms, wait_ms or self._block_ms), in_handlers)
        if not max_bytes:
            self.is_caught_up = False
            return Batch()
        batch = Batch()
        try:
            batch = self._read(settlements, size, max_bytes)
        finally:
            self._budget.tell(self, batch.sizes, in_handlers)
        if not batch and self.is_caught_up:
            self._wait_for_new(batch, wait_ms)
        return batch

    def _read(self, settlements: Sequence[Settlement], size: int, max_bytes: int) -> Batch:
        if self._unloaded:
            self.settle(settlements)
            self.is_caught_up = False
            return self._unloaded.load(size, max_bytes)
        if self._take_overs.is_due:
            self.settle(settlements)
            settlements = ()
            taken = self._take_over(size, max_bytes)
            if taken or self._take_overs.has_more:
                # All pages before anything else: what comes later in the stream is handled later.
                self.is_caught_up = False
                return taken
        if self._freed or self._retries.are_due:
            self.settle(settlements)
            settlements = ()
            freed, self._freed = self._freed, []
            due = self._unloaded.add_rest(Batch(messages=freed)) if freed else self._take_due(size, max_bytes)
            if due or self._unloaded:
                self._retries.have_had_their_turn = True
                self.is_caught_up = False
                return due
        self.is_caught_up, self._retries.have_had_their_turn = True, False
        is_full = self._blocked.is_full(self._config.max_parked)
        batch = self._settle_and_read(settlements, 0 if is_full else size, max_bytes)
        self._unloaded.add(batch.unloaded)
        self.in_flight |= {msg.id: msg.delivery_count for msg in (*batch.messages, *batch.unloaded)}
        if batch.messages:
            self._ends.seen(self.stream, batch.messages[-1].id, batch.messages[-1].data)
        return batch

    def _wait_for_new(self, batch: Batch, wait_ms: int | None) -> None:
        until_due_ms = int((min(self._retries.next_at, self._take_overs.next_at) - time.monotonic()) * 1000)
        block_ms = max(1, min(self._block_ms, until_due_ms, wait_ms or self._block_ms))
        if self._blocked.is_full(self._config.max_parked):
            self.waiting.sleep(block_ms)
        else:
            self.waiting.for_new(batch.last_delivered, block_ms)

    def _wait_for_room(self, wait_ms: int, in_handlers: int) -> int:
        until = time.monotonic() + wait_ms / 1000
        while not (max_bytes := self._budget.ask(self, in_handlers)) and time.monotonic() < until:
            if self.waiting.is_woken:
                break
            self.waiting.sleep(_ASK_EVERY_MS)
        if not max_bytes:
            # What waits on without asking would keep the others waiting, too.
            self._budget.wait_no_longer(self)
        return max_bytes

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """As `Channel.settle`, all in one script."""
        if settlements:
            self._settle_and_read(settlements, 0)

    def next_message(self, queued: deque[MqMessage]) -> MqMessage | None:
        """As `Channel.next_message`; with strict ordering, one whose key waits for a retry is parked."""
        self.check_lease()
        queued.extendleft(reversed(self._freed))
        self._freed.clear()
        if self._blocked and self._blocked.park(queued[0]):
            queued.popleft()
            return None
        msg = queued[0] if queued[0].is_loaded else self._unloaded.load_one(queued[0])
        # Not before: what cannot be loaded now is handed back with the others.
        queued.popleft()
        if msg is not None:
            self._in_handlers[msg.id] = len(msg.data)
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
        self._in_handlers.pop(msg.id, None)
        if isinstance(result, LeaseLostError):
            raise result
        if isinstance(result, MemoryError):
            self._budget.shrink()
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
        return _settlement_of_malformed(self.partition, self._rules, entry)

    def hand_back(self, queued: Sequence[MqMessage]) -> int:
        """As `Channel.hand_back`, with what is parked; the next owner begins with them."""
        self._budget.leave(self)
        messages = sorted((*queued, *self._freed, *self._unloaded, *self._blocked), key=_order)
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
        self._in_handlers.pop(msg.id, None)
        # It may wait for long; a large one is loaded again when its turn comes.
        return msg.as_delivered() if len(msg.data) <= _SMALL_BYTES else msg.unloaded()

    def count_unavailable(self, messages: int) -> None:
        """As `Channel.count_unavailable`."""
        self._metrics.count("conquiet_mq_database_unavailable_total", messages)

    def __str__(self) -> str:
        return str(self.partition)

    def _take_over(self, size: int, max_bytes: int) -> Batch:
        page = self._take_overs.take_page(size, self.in_flight, max_bytes)
        self._metrics.count("conquiet_mq_claimed_total", len(page.batch.messages))
        if self._config.ordering == "strict":
            for entry_id, key in zip(page.waiting, self.partition.keys_of(page.waiting), strict=True):
                self._blocked.block(entry_id, key)
        self.in_flight |= {msg.id: msg.delivery_count - 1 for msg in page.batch.messages}
        taken, self._freed = self._freed, []
        gone = list(page.vanished)
        if not self._take_overs.has_more:
            gone += self._find_gone_heads()
        # Also what waited for its retry, until somebody took it out of the waiting set.
        taken += self._blocked.unblock_all(gone, page.batch.messages)
        return self._unloaded.add_rest(replace(page.batch, messages=sorted(taken, key=_order)))

    def _find_gone_heads(self) -> list[str]:
        """Those that were acked and taken out of the waiting set by hand: nothing else opens their keys."""
        heads = [entry_id for entry_id in self._blocked.heads if entry_id not in self.in_flight]
        gone = self.partition.find_gone(heads)
        log_vanished(self.partition, gone)
        return gone

    def _take_due(self, size: int, max_bytes: int) -> Batch:
        due = self._retries.take(size, max_bytes)
        self.in_flight |= {msg.id: msg.delivery_count - 1 for msg in due.batch.messages}
        freed = self._blocked.unblock_all(due.vanished, due.batch.messages)
        return self._unloaded.add_rest(replace(due.batch, messages=freed))

    def _settle_and_read(self, settlements: Sequence[Settlement], size: int, max_bytes: int = 0) -> Batch:
        self._metrics.flush()
        started = time.monotonic()
        try:
            effects, batch = self.partition.settle_and_read(settlements, size, max_bytes=max_bytes)
        except LeaseLostError:
            self._metrics.count("conquiet_mq_fenced_total", len(settlements))
            raise
        for settlement, has_effect in zip(settlements, effects, strict=True):
            settlement.is_refused, settlement.is_done = not has_effect, True
            self._settled(settlement)
        self.has_worked = self.has_worked or (size > 0 and not batch)
        self._metrics.settled(settlements, time.monotonic() - started)
        self._metrics.count("conquiet_mq_in_flight", len(self.in_flight) + len(batch.messages))
        return batch

    def _settled(self, settlement: Settlement) -> None:
        if settlement.kind == "begin" and not settlement.is_refused:
            self.in_flight[settlement.entry_id] = settlement.delivery_count + 1
            return
        self.in_flight.pop(settlement.entry_id, None)
        self._in_handlers.pop(settlement.entry_id, None)
        if settlement.kind == "retry" and settlement.is_refused:
            # It waits no more, so nobody would open its key.
            self._freed += self._blocked.unblock(settlement.entry_id)
        elif settlement.kind == "retry":
            self._retries.scheduled(int(settlement.first))
        self.has_worked = self.has_worked or not settlement.is_refused
        if settlement.is_refused:
            text, entry_id = "entry %s of %s was claimed by another consumer", settlement.entry_id
            _log.warning(text, entry_id, self.partition, extra=self.partition.extra(message_id=entry_id))


def _settlement_of_malformed(
    partition: LeasedPartition, rules: SettlementRules, entry: MalformedEntry
) -> Settlement:
    count = entry.hand_back_count
    if count is None:
        return rules.for_malformed(entry, partition.where, _now_ms())
    emit("conquiet_mq_later_version_total", 1, *partition.labels)
    text, extra = "entry %s of %s stays pending for a consumer of a later version: %s", partition.extra
    _log.warning(text, entry.id, partition, entry.reason, extra=extra(message_id=entry.id))
    return Settlement("hand_back", entry.id, entry.delivery_count, count, outcome="handed_back")


def _order(msg: MqMessage) -> tuple[int, int]:
    return entry_id_order(msg.id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
