"""The serial worker of one owned partition: what earlier owners left, due retries, new messages."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from conquiet.arguments import check_positive_int
from conquiet.errors import LeaseLostError
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit
from conquiet.mq.partition import Batch, LeasedPartition
from conquiet.mq.settlement import Failure, Settlement, SettlementRules
from conquiet.queue.connection import longest_block_ms

_log = logging.getLogger(__name__)

#: A handled message is settled within this time, or as soon as the handler that runs then has ended.
_SETTLE_WITHIN_S = 0.1

#: Handles one message, given what Redis kept of its earlier failures, and says how to settle it.
HandleMessage = Callable[[MqMessage, Failure], Settlement]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How one worker reads and waits."""

    batch_size: int = 100
    block_ms: int = 1_000
    #: "strict": while a message waits for its retry, later ones of the same key wait behind it.
    ordering: Literal["default", "strict"] = "default"
    #: With strict ordering: messages that may wait behind others before the partition reads no more.
    max_parked: int = 1_000

    def __post_init__(self) -> None:
        for name in ("batch_size", "block_ms", "max_parked"):
            check_positive_int(name, getattr(self, name))
        if self.ordering not in ("default", "strict"):
            raise ValueError(f"ordering must be 'default' or 'strict', got {self.ordering!r}")


@dataclass(frozen=True, slots=True)
class Running:
    """The message in the handler now, and since when (monotonic)."""

    msg: MqMessage
    since: float


class PartitionWorker:
    """Handles the messages of one partition in order until it is stopped, loses its lease, or fails."""

    def __init__(
        self,
        partition: LeasedPartition,
        handle: HandleMessage,
        rules: SettlementRules,
        config: WorkerConfig,
        gate: threading.Event,
    ) -> None:
        self.partition = partition
        self._handle = handle
        self._rules = rules
        self._config = config
        #: Cleared while the consumer is paused.
        self._gate = gate
        self._is_stopping = False
        self._unsettled: list[Settlement] = []
        self._unsettled_since = 0.0
        #: Handed to the handler and not yet counted.
        self._handled = 0
        #: Read and not begun, in order.
        self._held: deque[MqMessage] = deque()
        self._failures: dict[str, bytes] = {}
        #: Keys whose first message waits for its retry, and what waits behind it.
        self._parked: dict[str, deque[MqMessage]] = {}
        #: Those first messages: entry id and key.
        self._heads: dict[str, str] = {}
        #: Where the take-over goes on; `None` before it has begun.
        self._taken_until: str | None = None
        self._has_taken_over = False
        self._next_due = 0.0
        self._labels = (partition.topic.name, str(partition.partition), partition.group)
        longest = longest_block_ms(partition.topic.client, partition.topic.keys.stream(partition.partition))
        self._block_ms = config.block_ms if longest is None else min(config.block_ms, longest)
        #: Entry id and delivery count of all that is read and not settled; read by the thread that renews.
        self.in_flight: dict[str, int] = {}
        self.running: Running | None = None
        #: Monotonic time until which the lease is certainly held; moved on by the thread that renews.
        self.lease_is_certain_until = 0.0

    def stop(self) -> None:
        """Finish the message at hand, hand back the rest, and end."""
        self._is_stopping = True

    def is_certain(self) -> bool:
        """Whether the lease is held for sure; past that time another consumer may own the partition."""
        return time.monotonic() < self.lease_is_certain_until

    def work(self) -> None:
        """Work until stopped.

        Raises:
            LeaseLostError: another consumer may own the partition; what was not settled is handled again.
            QueueError: Redis failed.
        """
        while not self._is_stopping:
            if not self._gate.wait(timeout=0.05):
                self._settle()
            elif self._held:
                self._work_through(Batch())
            elif not self._has_taken_over:
                self._take_over()
            else:
                if time.monotonic() >= self._next_due:
                    self._take_due()
                self._read_new()
        self._let_go()

    def _take_over(self) -> None:
        # Settled one by one: whoever dies of the next one shall not have delivered this one in vain.
        self._settle()
        page = self.partition.take_over(self._taken_until, self._config.batch_size)
        emit("conquiet_mq_claimed_total", len(page.batch.messages), *self._labels)
        self._tell_gone(page.gone)
        if self._config.ordering == "strict":
            for entry_id, key in zip(page.waiting, self.partition.keys_of(page.waiting), strict=True):
                self._park_behind(entry_id, key)
        self._work_through(page.batch)
        self._taken_until, self._has_taken_over = page.after, page.after is None

    def _take_due(self) -> None:
        due = self.partition.take_due(self._config.batch_size)
        self._tell_gone(due.gone)
        for entry_id in due.gone:
            self._held.extend(self._unparked(entry_id))
        for msg in due.batch.messages:
            # The head of its key comes back: it must not be parked behind itself.
            self._held.extend((msg, *self._unparked(msg.id)))
        # Nobody else adds to the waiting set of an owned partition; an admin may.
        until_due_s = 1.0 if due.next_due_ms is None else due.next_due_ms / 1000
        self._next_due = time.monotonic() + min(1.0, until_due_s)
        rest = Batch(malformed=due.batch.malformed, failures=due.batch.failures)
        self._work_through(rest, extra=due.batch.messages)

    def _read_new(self) -> None:
        is_full = sum(map(len, self._parked.values())) >= self._config.max_parked
        batch = self._settle(read=0 if is_full else self._config.batch_size)
        if batch:
            self._work_through(batch)
        elif not self._is_stopping:
            until_due_ms = int((self._next_due - time.monotonic()) * 1000)
            block_ms = max(1, min(self._block_ms, until_due_ms))
            if is_full:
                time.sleep(block_ms / 1000)
            else:
                self.partition.wait_for_new(self.partition.last_delivered(), block_ms)

    def _work_through(self, batch: Batch, extra: list[MqMessage] | None = None) -> None:
        self._failures |= batch.failures
        self._held.extend(batch.messages)
        for msg in (*batch.messages, *(extra or ())):
            self.in_flight[msg.id] = msg.delivery_count
        for entry in batch.malformed:
            self.in_flight[entry.id] = entry.delivery_count
            place = {
                "topic": self._labels[0],
                "group": self._labels[2],
                "partition": self.partition.partition,
            }
            self._note(self._rules.for_malformed(entry, now_ms=_now_ms(), **place))  # type: ignore[arg-type]
        while self._held and not self._is_stopping and self._gate.is_set():
            self._one(self._held.popleft())
            if self._unsettled and time.monotonic() - self._unsettled_since > _SETTLE_WITHIN_S:
                self._settle()

    def _one(self, msg: MqMessage) -> None:
        if msg.key is not None and msg.key in self._parked:
            self._parked[msg.key].append(msg)
            return
        if not self.is_certain():
            raise self.partition.lost()
        failure = Failure.decode(self._failures.pop(msg.id, b""), _now_ms())
        settlement = self._settlement_without_handler(msg, failure)
        if settlement is None:
            self.running = Running(msg, time.monotonic())
            try:
                settlement = self._handle(msg, failure)
            finally:
                self.running = None
                self._handled += 1
        self._note(settlement)
        if settlement.kind == "retry" and self._config.ordering == "strict":
            self._park_behind(msg.id, msg.key)

    def _settlement_without_handler(self, msg: MqMessage, failure: Failure) -> Settlement | None:
        if msg.envelope.for_group not in (None, msg.group):
            # A copy that was re-enqueued for another group.
            return Settlement("ack", msg.id, msg.delivery_count)
        return self._rules.for_poison(msg, failure, _now_ms())

    def _note(self, settlement: Settlement) -> None:
        if not self._unsettled:
            self._unsettled_since = time.monotonic()
        self._unsettled.append(settlement)

    def _settle(self, read: int = 0) -> Batch:
        if not self._unsettled and not read:
            return Batch()
        started = time.monotonic()
        try:
            effects, batch = self.partition.settle_and_read(self._unsettled, read)
        except LeaseLostError:
            emit("conquiet_mq_fenced_total", len(self._unsettled), *self._labels)
            raise
        if self._unsettled:
            emit("conquiet_mq_settle_seconds", time.monotonic() - started, *self._labels)
        settled: Counter[str] = Counter()
        for settlement, took_effect in zip(self._unsettled, effects, strict=True):
            self.in_flight.pop(settlement.entry_id, None)
            if settlement.kind == "retry":
                # Not before it is settled: a look at the waiting set in between would find nothing due.
                self._next_due = min(self._next_due, time.monotonic() + int(settlement.first) / 1000)
            if took_effect:
                settled[settlement.kind] += 1
            else:
                emit("conquiet_mq_fenced_total", 1, *self._labels)
                _log.warning(
                    "entry %s of %s was taken by another consumer before it was settled",
                    settlement.entry_id,
                    self,
                )
        for kind, number in settled.items():
            emit("conquiet_mq_settled_total", number, *self._labels, kind)
        emit("conquiet_mq_consumed_total", self._handled, *self._labels)
        self._handled = 0
        self._unsettled.clear()
        emit("conquiet_mq_in_flight", len(self.in_flight) + len(batch.messages), *self._labels)
        return batch

    def _let_go(self) -> None:
        unbegun = [*self._held, *(msg for parked in self._parked.values() for msg in parked)]
        for msg in sorted(unbegun, key=lambda msg: msg.source.id):
            self._note(Settlement("hand_back", msg.id, msg.delivery_count))
        self._settle()

    def _park_behind(self, entry_id: str, key: str | None) -> None:
        if key is not None:
            self._heads[entry_id] = key
            self._parked.setdefault(key, deque())

    def _unparked(self, head_id: str) -> deque[MqMessage]:
        key = self._heads.pop(head_id, None)
        return deque() if key is None else self._parked.pop(key, deque())

    def _tell_gone(self, entry_ids: list[str]) -> None:
        if entry_ids:
            emit("conquiet_mq_vanished_total", len(entry_ids), *self._labels)
            _log.error(
                "%d pending entries of %s were acked by others or are no longer in the stream: %s",
                len(entry_ids),
                self,
                entry_ids,
            )

    def __str__(self) -> str:
        topic, partition, group = self._labels
        return f"partition {partition} of topic {topic!r} for group {group!r}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
