"""The serial worker of one owned partition: what earlier owners left, due retries, new messages."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from conquiet.errors import DatabaseUnavailableError, LeaseLostError, MalformedEntry, QueueError
from conquiet.logs import MessageLog
from conquiet.mq.clock import lease_clock
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit
from conquiet.mq.own.attempts import Attempts, HandleMessage
from conquiet.mq.own.parking import Parking
from conquiet.mq.own.partition import Batch, LeasedPartition
from conquiet.mq.own.settlement import Settlement, SettlementRules
from conquiet.mq.own.settling import Settling
from conquiet.mq.own.worker_config import WorkerConfig
from conquiet.queue.connection import longest_block_ms
from conquiet.queue.message import entry_id_order

_log = MessageLog(logging.getLogger(__name__))


class PartitionWorker:
    """Handles the messages of one partition in order until it is stopped, loses its lease, or fails."""

    def __init__(
        self,
        partition: LeasedPartition,
        handle: HandleMessage,
        rules: SettlementRules,
        config: WorkerConfig,
        gate: threading.Event,
        *,
        max_outage_s: float = 60.0,
    ) -> None:
        self.partition = partition
        self.settling = Settling(partition)
        self.attempts = Attempts(self.settling, handle, rules, max_outage_s)
        self._handle = handle
        self._rules = rules
        self._config = config
        #: Cleared while the consumer is paused.
        self._gate = gate
        self._is_stopping = False
        #: Asked before each message and each read.
        self.should_stop: Callable[[], bool] = lambda: False
        #: Read and not begun, in order.
        self._held: deque[MqMessage] = deque()
        #: Those of them, and of the parked ones, that Redis counts only when they begin.
        self._uncounted: set[str] = set()
        self._failures: dict[str, bytes] = {}
        self._parking = Parking()
        #: Where the take-over goes on; `None` before it has begun.
        self._taken_until: str | None = None
        self._has_taken_over = False
        longest = longest_block_ms(partition.topic.client, partition.topic.keys.stream(partition.partition))
        self._block_ms = config.block_ms if longest is None else min(config.block_ms, longest)
        #: Monotonic time since which there has been nothing to do.
        self.idle_since: float | None = None
        #: Until when, by `lease_clock`, the lease is certainly held; moved on by the thread that renews.
        self.lease_is_certain_until = 0.0

    def stop(self) -> None:
        """Finish the message at hand, hand back the rest, and end."""
        self._is_stopping = True

    def is_certain(self) -> bool:
        """Whether the lease is held for sure; past that time another consumer may own the partition."""
        return lease_clock() < self.lease_is_certain_until

    def check_lease(self) -> None:
        """Refuse to go on without a lease.

        Raises:
            LeaseLostError: another consumer may own the partition.
        """
        if not self.is_certain():
            raise self.partition.lost()

    def work(self) -> None:
        """Work until stopped.

        Raises:
            LeaseLostError: another consumer may own the partition; what was not settled is handled again.
            QueueError: Redis failed.
            DatabaseUnavailableError: the database could not be reached for `max_outage_s`.
        """
        try:
            while not self._has_to_stop():
                self._step()
            self._let_go()
        except QueueError:
            raise
        except BaseException as error:
            # A handler ends the process, or the lease is uncertain by our own clock and perhaps fine by the
            # server's: what was committed must not be handled again for that.
            if not self.partition.is_lost:
                self._let_go_after(error)
            raise
        finally:
            self.settling.observe_times()

    def _step(self) -> None:
        if not self._gate.wait(timeout=0.05):
            self._handle.release()
            self.settling.settle()
        elif not self.attempts.is_time_to_try():
            self.settling.settle()
            time.sleep(0.02)
        elif self._held:
            self._work_through(Batch())
        elif not self._has_taken_over:
            self._take_over()
        else:
            if time.monotonic() >= self.settling.next_due:
                self._take_due()
            self._read_new()

    def _has_to_stop(self) -> bool:
        self._is_stopping = self._is_stopping or self.should_stop()
        return self._is_stopping

    def _may_begin(self) -> bool:
        return not self._has_to_stop() and self._gate.is_set() and self.attempts.is_time_to_try()

    def _take_over(self) -> None:
        self.settling.settle()
        page = self.partition.take_over(self._taken_until, self._config.batch_size)
        emit("conquiet_mq_claimed_total", len(page.batch.messages), *self.partition.labels)
        self._tell_gone(page.gone)
        if self._config.ordering == "strict":
            for entry_id, key in zip(page.waiting, self.partition.keys_of(page.waiting), strict=True):
                self._parking.close(entry_id, key)
        self._note_taken(page.batch.messages)
        self._work_through(page.batch)
        self._taken_until, self._has_taken_over = page.after, page.after is None

    def _take_due(self) -> None:
        due = self.partition.take_due(self._config.batch_size)
        self._tell_gone(due.gone)
        for entry_id in due.gone:
            self._held.extend(self._parking.open(entry_id))
        for msg in due.batch.messages:
            self._held.extend(self._parking.open(msg.id, msg))
        # Nobody else adds to the waiting set of an owned partition; an admin may.
        until_due_s = 1.0 if due.next_due_ms is None else due.next_due_ms / 1000
        self.settling.next_due = time.monotonic() + min(1.0, until_due_s)
        if due.batch:
            self.idle_since = None
        self._note_taken(due.batch.messages)
        self._work_through(Batch(malformed=due.batch.malformed, failures=due.batch.failures))

    def _note_taken(self, messages: Iterable[MqMessage]) -> None:
        for msg in messages:
            self._uncounted.add(msg.id)
            self.settling.in_flight[msg.id] = msg.delivery_count - 1

    def _read_new(self) -> None:
        # Not only before a wait: with fewer connections than partitions, busy workers take turns.
        self._handle.release()
        is_full = self._parking.size >= self._config.max_parked
        batch = self.settling.settle(read=0 if is_full else self._config.batch_size)
        if batch:
            self.idle_since = None
            self.settling.in_flight |= {msg.id: msg.delivery_count for msg in batch.messages}
            # After a reset of the group what is parked is delivered anew, and counted again.
            self._uncounted.difference_update(msg.id for msg in batch.messages)
            self._work_through(batch)
        elif not self._is_stopping:
            self.idle_since = self.idle_since or time.monotonic()
            until_due_ms = int((self.settling.next_due - time.monotonic()) * 1000)
            block_ms = max(1, min(self._block_ms, until_due_ms))
            if is_full:
                time.sleep(block_ms / 1000)
            else:
                self.partition.wait_for_new(batch.last_delivered, block_ms)

    def _work_through(self, batch: Batch) -> None:
        self._failures |= batch.failures
        self._held.extend(batch.messages)
        for entry in batch.malformed:
            self._give_up(entry)
        while self._held and self._may_begin():
            self.check_lease()
            self._one(self._held.popleft())
            self.settling.settle_if_late()

    def _give_up(self, entry: MalformedEntry) -> None:
        self.settling.in_flight[entry.id] = entry.delivery_count
        topic, _, group = self.partition.labels
        place = {"topic": topic, "group": group, "partition": self.partition.partition}
        self.settling.note(self._rules.for_malformed(entry, now_ms=_now_ms(), **place))  # type: ignore[arg-type]

    def _one(self, msg: MqMessage) -> None:
        if self._parking and self._parking.park(msg):
            return
        if msg.id in self._uncounted and not self._begin(msg):
            return
        kept = self._failures.pop(msg.id, b"")
        try:
            settlement = self.attempts.settlement_of(msg, kept)
        except DatabaseUnavailableError as error:
            # Begun and not failed: it is handled again as the same attempt, before all others.
            self._held.appendleft(msg)
            if kept:
                self._failures[msg.id] = kept
            self.attempts.bear(msg, error)
            return
        self.settling.note(settlement)
        if settlement.kind == "retry" and self._config.ordering == "strict":
            self._parking.close(msg.id, msg.key)

    def _begin(self, msg: MqMessage) -> bool:
        # In one call with those before it: whoever dies of this one shall not have handled them in vain.
        self.settling.note(Settlement("begin", msg.id, msg.delivery_count - 1))
        self.settling.settle()
        self._uncounted.discard(msg.id)
        return msg.id in self.settling.in_flight

    def _let_go(self) -> None:
        for msg in sorted((*self._held, *self._parking), key=lambda msg: entry_id_order(msg.id)):
            count = self.settling.in_flight[msg.id]
            self.settling.note(Settlement("hand_back", msg.id, count, msg.delivery_count - 1))
        self.settling.settle()

    def _let_go_after(self, error: BaseException) -> None:
        try:
            self._let_go()
        except (LeaseLostError, QueueError) as also:
            error.add_note(f"and {self} could not let go of what it held: {also}")

    def _tell_gone(self, entry_ids: list[str]) -> None:
        if entry_ids:
            emit("conquiet_mq_vanished_total", len(entry_ids), *self.partition.labels)
            facts = (len(entry_ids), self, entry_ids)
            _log.error(
                "%d pending entries of %s were acked by others or are no longer in the stream: %s",
                *facts,
                extra=self.partition.extra(message_id=entry_ids[0] if len(entry_ids) == 1 else None),
            )

    def __str__(self) -> str:
        return str(self.partition)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
