"""The engine: the one loop under every drain, every consumer of a topic and every worker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from conquiet.consume.attempt import Attempt, Attempts
from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.decisions import Decisions
from conquiet.consume.gate import Gate
from conquiet.consume.handlers import OwnThread, Threads
from conquiet.consume.limits import DrainLimits
from conquiet.consume.order import order_of
from conquiet.consume.outcome import Settlement
from conquiet.consume.queued import Queued
from conquiet.consume.report import DrainReport, StopReason
from conquiet.consume.spans import Spans
from conquiet.consume.tally import Tally
from conquiet.consume.unsettled import Unsettled
from conquiet.errors import ConquietError, DatabaseUnavailableError, text_of
from conquiet.logs import MessageLog, naming_messages_of
from conquiet.masking import mask
from conquiet.queue.batch_size import BatchSize

_log = MessageLog(logging.getLogger(__name__))

#: How long the loop waits before it looks again, and for new messages while others are in handlers.
_MOMENT_S = 0.02

_WHAT_FOLLOWS = {
    "leave": "stays pending",
    "retry": "will be retried",
    "requeue": "will be retried as a copy",
    "dead_letter": "becomes a dead letter",
    "hand_back": "will be tried again as the same attempt",
}


class DrainLoop(Generic[M]):
    """One run over one channel, from its first read to its report; used once, by one thread.

    For each message, or batch: open a transaction, handle, commit, settle, in this order. Whatever ends the
    loop, what was committed is settled, and what was read and not begun is handed back. With
    `limits.concurrency` the handlers, and nothing else, run in other threads.
    """

    def __init__(
        self, channel: Channel[M], handling: Handling[M], limits: DrainLimits, *, gate: Gate | None = None
    ) -> None:
        self._channel = channel
        self._handling = handling
        self._limits = limits
        self._gate = gate or Gate()
        #: Whether others wait for a connection of the database, too.
        self._is_consumer = gate is not None
        self._spans = Spans(channel.where, channel.stream)
        # The size of a transaction is the user's choice.
        adapts = channel.is_shared and not handling.takes_batches
        self._sizes = BatchSize(limits.batch_size, adapts=adapts)
        self._tally = Tally(limits, keeps_failures=gate is None)
        self._unsettled = Unsettled(channel, self._spans, self._tally)
        order, self._is_concurrent = order_of(limits, channel), limits.concurrency > 1
        self._decisions = Decisions(channel, handling, self._spans, is_concurrent=self._is_concurrent)
        self._queued = Queued(channel, self._unsettled, order, self._decisions.alone)
        self.attempts = Attempts(channel, handling, self._spans, self._gate)
        self._handlers: OwnThread[M] | Threads[M] = OwnThread(self.attempts)
        if self._is_concurrent:
            self._handlers = Threads(limits.concurrency, order, self._attempts_of_another_thread)
        self._is_stopping = False
        #: Whether the last read brought less than was asked for: the next one may wait.
        self._may_wait = True
        #: Whether nothing more will come.
        self._is_exhausted = False

    def stop(self) -> None:
        """Finish what is in handlers, hand back the rest, and end; callable from anywhere."""
        self._is_stopping = True

    def in_handlers(self) -> list[tuple[M, float]]:
        """The messages in handlers, of a batch its first, and since when (monotonic); for any thread."""
        threads = list(self._handlers.threads)
        return [(msg, one.in_handler_since) for one in threads if (msg := one.in_handler) is not None]

    def run(self) -> DrainReport:
        """Work until a limit is reached, nothing more will come, or an error ends it.

        Raises:
            DrainError: messages failed and are still pending.
            LeaseLostError: another consumer may own the channel; what was not settled is handled again.
            QueueError: Redis failed.
            DatabaseUnavailableError: for longer than the channel tolerates.
        """
        try:
            with naming_messages_of(self.attempts):
                stopped_by = self._work()
                if (failed := self._wait_for_handlers()) is not None:
                    raise failed  # noqa: TRY301 -- as any error that ends the loop
                if stopped_by != "stop":
                    self._decisions.aside.raise_first()
                self._finish()
        except BaseException as error:
            self.attempts.end_handling()
            self._finish_after(error)
            raise
        report = self._tally.report(self._channel, stopped_by, len(self._queued.messages))
        if self._tally.has_left_pending:
            raise self._tally.error(report) from self._tally.failures[0].error
        return report

    def settle_while_handling(self, msg: M, then: Callable[[], object]) -> bool:
        """For another thread: while the handler of a message runs, settle what is before it, and do `then`.

        `False`: the handler has ended, nothing was done. After a `QueueError` the loop settles it.
        """
        with self.attempts.while_handling() as handled:
            if handled is not msg:
                return False
            self._unsettled.settle()
            then()
        return True

    def _attempts_of_another_thread(self) -> Attempts[M]:
        return Attempts(self._channel, self._handling.for_another_thread(), self._spans, self._gate)

    def _work(self) -> StopReason:
        queued = self._queued.messages
        # Nothing to ask before a message begins: the usual case is to stay a quick one.
        is_free = not (self._is_concurrent or self._gate.has_limit)
        while (reason := self._reason_to_stop()) is None:
            if self._wait_if_blocked():
                continue
            if not queued and self._decisions.aside.messages:
                queued.extend(self._decisions.take_due())
            size = self._sizes.next
            read = len(queued) or self._read(size)
            if read is None:
                return "idle"
            begun = time.monotonic()
            while queued and self._reason_to_stop() is None and not self._wait_if_blocked():
                if is_free or self._enter():
                    self._handle_next()
                if self._unsettled.are_overdue:
                    self._unsettled.settle()
            if read == size:
                self._sizes.took(time.monotonic() - begun)
        return reason

    def _reason_to_stop(self) -> StopReason | None:
        return "stop" if self._is_stopping else self._tally.reason_to_stop(self._decisions.failed)

    def _wait_if_blocked(self) -> bool:
        """Wait for a moment if the consumer is paused or the database is unavailable."""
        database = self._decisions.database
        if not self._gate.is_paused and (not database.is_on or database.is_time_to_try()):
            return False
        self._give_way()
        self._wait_for_ended()
        return True

    def _give_way(self) -> None:
        # Before a wait that may be long: what was committed is settled, and others may use the connection.
        self._handling.release()
        self._unsettled.settle()

    def _should_not_begin(self) -> bool:
        return self._gate.is_paused or self._reason_to_stop() is not None

    def _enter(self) -> bool:
        """Whether the next message may begin now; if not, some have ended or a moment is over."""
        if self._is_concurrent:
            self._conclude_ended()
            if not self._may_begin_beside(self._handlers.count):
                self._wait_for_ended()
                return False
        if not self._gate.has_limit or self._gate.enter_at_once():
            return True
        if self._handlers.count:
            # Those would be waited for in vain.
            self._wait_for_ended()
            return False
        return self._gate.enter(self._should_not_begin, self._give_way)

    def _may_begin_beside(self, others: int) -> bool:
        # A database that was unavailable is tried with one message.
        is_alone = self._decisions.database.is_on or not self._decisions.alone.isdisjoint(self._handlers.ids)
        return (
            not (others and is_alone)
            and self._handlers.has_room()
            and self._tally.most_to_take(1, len(self._handlers.ids)) == 1
            and self._queued.bring_forward(others)
        )

    def _read(self, size: int) -> int | None:
        """Settle, read up to `size` messages, and return how many entries came; `None` at the end."""
        if self._is_concurrent:
            self._conclude_ended()
            if self._queued.messages:
                # Put back: a read that brings nothing would be the end of a drain.
                return 0
        in_handlers = len(self._handlers.ids)
        size = self._tally.most_to_take(size, in_handlers)
        if in_handlers and (size <= 0 or self._is_exhausted):
            self._wait_for_ended()
            return 0
        self._handling.purge_inbox()
        if self._may_wait or self._is_consumer:
            # Not only before a wait: with fewer connections than threads, busy ones take turns.
            self._handling.release()
        if self._spans.are_on:
            # Else the wait for new messages would be a part of the ack's span.
            self._unsettled.settle()
        started, started_ns = time.monotonic(), time.time_ns()
        wait_ms = int(_MOMENT_S * 1000) if in_handlers else self._tally.longest_wait_ms(started)
        batch = self._channel.read(self._unsettled.settlements, size, wait_ms)
        self._unsettled.record(started_ns)
        if batch is None:
            self._is_exhausted = True
            return 0 if in_handlers else None
        # A handler may add messages: the wait for others begins when all have ended.
        is_caught_up = self._channel.is_caught_up and not in_handlers
        count = self._tally.read(batch, started, is_caught_up=is_caught_up)
        self._may_wait = count < size
        self._sizes.learn(batch)
        self._spans.received(batch.messages, started_ns)
        self._queued.messages.extend(batch.messages)
        for entry in batch.malformed:
            self._record_decision(self._channel.decide_malformed(entry), entry.delivery_count)
        return count

    def _handle_next(self) -> None:
        """Begin the next message, or batch; in the loop's own thread it has ended then."""
        messages: list[M] = []
        is_begun = False
        try:
            most = 1
            if self._handling.takes_batches:
                most = self._tally.most_to_take(self._limits.batch_size, len(self._handlers.ids))
            messages = self._without_given_up(self._queued.take(most, self._handlers.count))
            if messages:
                is_begun = True
                self._handlers.begin(messages)
        except BaseException:
            if is_begun and not self._is_concurrent:
                # Ctrl-C, an exit: nothing that a message did. Handed back with the others, it is no attempt.
                self._queued.messages.extendleft(reversed(messages))
            raise
        finally:
            if not is_begun:
                self._gate.leave()
        self._conclude_ended()

    def _without_given_up(self, messages: list[M]) -> list[M]:
        """Those whose handlers are to run; after an error all that is undecided is queued again."""
        queued, left = self._queued.messages, deque(messages)
        kept: list[M] = []
        try:
            while left:
                settlement = self._decisions.without_handler(left[0])
                msg = left.popleft()
                if settlement is None:
                    kept.append(msg)
                else:
                    self._tally.taken += 1
                    self._record_decision(settlement, msg.attempt)
        except DatabaseUnavailableError as error:
            self._decisions.put_back([*kept, *left], error, queued, time.monotonic())
            return []
        except BaseException:
            queued.extendleft(reversed([*kept, *left]))
            raise
        return kept

    def _conclude_ended(self, wait_s: float = 0) -> None:
        """Decide what becomes of all that has ended, maybe after a wait for one."""
        attempt = self._handlers.take_ended(wait_s)
        while attempt is not None:
            self._conclude(attempt)
            attempt = self._handlers.take_ended() if self._is_concurrent else None

    def _wait_for_ended(self) -> None:
        """Wait for a moment, or until a handler has ended; what ended before is settled in time."""
        self._conclude_ended(_MOMENT_S)
        if self._unsettled.are_overdue:
            self._unsettled.settle()

    def _conclude(self, attempt: Attempt[M]) -> None:
        queued = self._queued.messages
        try:
            settlements = self._decisions.decide(attempt)
        except DatabaseUnavailableError as error:
            self._decisions.put_back(attempt.messages, error, queued, attempt.since)
            return
        except Exception:
            self._tally.left_pending(len(attempt.messages))
            raise
        except BaseException:
            queued.extendleft(reversed(attempt.messages))
            raise
        if not settlements:
            self._decisions.put_back_alone(attempt, queued)
        for msg, settlement in zip(attempt.messages, settlements, strict=False):
            self._tally.taken += 1
            self._record_decision(settlement, msg.attempt)
            if self._decisions.aside.messages and settlement.outcome == "handled":
                self._decisions.aside.suspect(attempt.since)
            if settlement.error is not None and self._limits.on_error == "raise":
                raise settlement.error

    def _record_decision(self, settlement: Settlement, attempt: int) -> None:
        self._unsettled.add(settlement)
        self._tally.decided(settlement)
        if settlement.error is not None or settlement.kind == "dead_letter":
            _log_failure(settlement, self._channel, attempt, self._spans)

    def _wait_for_handlers(self) -> BaseException | None:
        """Settle what ends in other threads, until none is in a handler; returns the first failure."""
        self._handlers.end()
        failed: BaseException | None = None
        while self._handlers.is_busy:
            attempt = self._handlers.take_ended(_MOMENT_S)
            try:
                if attempt is not None:
                    self._conclude(attempt)
                if failed is None and self._unsettled.are_overdue:
                    self._unsettled.settle()
            except BaseException as error:  # noqa: BLE001 -- returned when nothing runs any more
                failed = failed or error
        return failed

    def _finish(self) -> None:
        try:
            # First: a committed message must not be claimed as if it were not.
            self._unsettled.settle()
        finally:
            queued = self._queued.messages
            queued.extendleft(reversed(self._decisions.aside.take_all()))
            if self._channel.can_settle:
                self._tally.handed_back(self._channel.hand_back(queued))
                queued.clear()

    def _finish_after(self, error: BaseException) -> None:
        notes = []
        if (failed := self._wait_for_handlers()) is not None and failed is not error:
            notes.append(f"and what was in another handler has failed, too: {text_of(failed)}")
        try:
            if self._channel.can_settle:
                self._finish()
        except ConquietError as also:
            notes.append(f"and what was read could not be settled and handed back: {also}")
        for settlement in self._unsettled.settlements:
            self._tally.unsettled(settlement)
        report = self._tally.report(self._channel, "error", len(self._queued.messages))
        # A user's exception class may refuse notes and attributes; it must leave all the same.
        with suppress(Exception):
            for note in (*notes, f"drain report: {report.to_json()}"):
                error.add_note(note)
            error.drain_report = report  # type: ignore[attr-defined]  # documented in `DrainLimits`


def _log_failure(settlement: Settlement, channel: object, attempt: int, spans: Spans) -> None:
    reason = f" ({mask(settlement.reason)})" if settlement.reason else ""
    _log.warning(
        "entry %s of %s failed at attempt %s and %s%s",
        *(settlement.entry_id, channel, attempt, _WHAT_FOLLOWS[settlement.kind], reason),
        exc_info=settlement.error,
        extra=spans.log_fields(settlement.entry_id),
    )
