"""The engine: the one loop under every drain, every consumer of a topic and every worker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from conquiet.consume.attempt import Attempts
from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.gate import Gate
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outcome import Settlement
from conquiet.consume.report import DrainReport, StopReason
from conquiet.consume.spans import Spans
from conquiet.consume.tally import Tally
from conquiet.consume.unsettled import Unsettled
from conquiet.errors import ConquietError, DatabaseUnavailableError
from conquiet.logs import MessageLog, naming_messages_of
from conquiet.masking import mask
from conquiet.queue.batch_size import BatchSize

_log = MessageLog(logging.getLogger(__name__))

_WHAT_FOLLOWS = {
    "leave": "stays pending",
    "retry": "will be retried",
    "requeue": "will be retried as a copy",
    "dead_letter": "becomes a dead letter",
    "hand_back": "will be tried again as the same attempt",
}


class DrainLoop(Generic[M]):
    """One run over one channel, from its first read to its report; used once, by one thread.

    For each message: open a transaction, handle, commit, settle, in this order. Whatever ends the loop, what
    was committed is settled, and what was read and not begun is handed back.
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
        self._sizes = BatchSize(limits.batch_size, adapts=channel.is_shared)
        self._tally = Tally(limits, keeps_failures=gate is None)
        self.attempts = Attempts(channel, handling, self._spans)
        self._is_stopping = False
        self._queued: deque[M] = deque()
        self._unsettled = Unsettled(channel, self._spans, self._tally)
        #: Whether the last read brought less than was asked for: the next one may wait.
        self._may_wait = True

    def stop(self) -> None:
        """Finish the message in the handler, hand back the rest, and end; callable from anywhere."""
        self._is_stopping = True

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
                if stopped_by != "stop":
                    self.attempts.aside.raise_first()
                self._finish()
        except BaseException as error:
            self.attempts.end_handling()
            self._finish_after(error)
            raise
        report = self._tally.report(self._channel, stopped_by, len(self._queued))
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

    def _work(self) -> StopReason:
        has_gate = self._gate.has_limit
        while (reason := self._reason_to_stop()) is None:
            if self._wait_if_blocked():
                continue
            if not self._queued and self.attempts.aside.messages:
                self._queued.extend(self.attempts.take_due())
            size = self._sizes.next
            read = len(self._queued) or self._read(size)
            if read is None:
                return "idle"
            begun = time.monotonic()
            while self._queued and self._reason_to_stop() is None and not self._wait_if_blocked():
                if has_gate and not self._gate.enter(self._should_not_begin, self._give_way):
                    continue
                try:
                    msg = self._channel.next_message(self._queued)
                    if msg is not None:
                        begin = self._channel.begin(msg)
                        if begin is not None:
                            # With those before it: they are settled if this one kills the process.
                            self._unsettled.add(begin)
                            self._unsettled.settle()
                        if begin is None or not begin.is_refused:
                            self._handle(msg)
                finally:
                    if has_gate:
                        self._gate.leave()
                # It may be large, and the next read brings others.
                msg = None
                if self._unsettled.are_overdue:
                    self._unsettled.settle()
            if read == size:
                self._sizes.took(time.monotonic() - begun)
        return reason

    def _reason_to_stop(self) -> StopReason | None:
        return "stop" if self._is_stopping else self._tally.reason_to_stop(self.attempts.failed)

    def _wait_if_blocked(self) -> bool:
        """Wait for a moment if the consumer is paused or the database is unavailable."""
        database = self.attempts.database
        if not self._gate.is_paused and (not database.is_on or database.is_time_to_try()):
            return False
        self._give_way()
        time.sleep(0.02)
        return True

    def _give_way(self) -> None:
        # Before a wait that may be long: what was committed is settled, and others may use the connection.
        self._handling.release()
        self._unsettled.settle()

    def _should_not_begin(self) -> bool:
        return self._gate.is_paused or self._reason_to_stop() is not None

    def _read(self, size: int) -> int | None:
        """Settle, read up to `size` messages, and return how many entries came; `None` at the end."""
        self._handling.purge_inbox()
        if self._may_wait or self._is_consumer:
            # Not only before a wait: with fewer connections than threads, busy ones take turns.
            self._handling.release()
        if self._spans.are_on:
            # Else the wait for new messages would be a part of the ack's span.
            self._unsettled.settle()
        size = self._tally.most_to_read(size)
        started, started_ns = time.monotonic(), time.time_ns()
        batch = self._channel.read(self._unsettled.settlements, size, self._tally.longest_wait_ms(started))
        self._unsettled.record(started_ns)
        if batch is None:
            return None
        count = self._tally.read(batch, started, is_caught_up=self._channel.is_caught_up)
        self._may_wait = count < size
        self._sizes.learn(batch)
        self._spans.received(batch.messages, started_ns)
        self._queued.extend(batch.messages)
        for entry in batch.malformed:
            self._record_decision(self._channel.decide_malformed(entry), entry.delivery_count)
        return count

    def _handle(self, msg: M) -> None:
        try:
            settlement = self.attempts.handle(msg)
        except DatabaseUnavailableError as error:
            self.attempts.put_back(msg, error, self._queued)
            return
        except Exception:
            self._tally.left_pending()
            raise
        except BaseException:
            # Ctrl-C, an exit: nothing that the message did. Handed back with the others, it is no attempt.
            self._queued.appendleft(msg)
            raise
        self._tally.taken += 1
        self._record_decision(settlement, msg.attempt)
        if self.attempts.aside.messages and settlement.outcome == "handled":
            self.attempts.aside.suspect()
        if settlement.error is not None and self._limits.on_error == "raise":
            raise settlement.error

    def _record_decision(self, settlement: Settlement, attempt: int) -> None:
        self._unsettled.add(settlement)
        self._tally.decided(settlement)
        if settlement.error is not None or settlement.kind == "dead_letter":
            _log_failure(settlement, self._channel, attempt, self._spans)

    def _finish(self) -> None:
        try:
            # First: a committed message must not be claimed as if it were not.
            self._unsettled.settle()
        finally:
            self._queued.extendleft(reversed(self.attempts.aside.take_all()))
            if self._channel.can_settle:
                self._tally.handed_back(self._channel.hand_back(self._queued))
                self._queued.clear()

    def _finish_after(self, error: BaseException) -> None:
        notes = []
        try:
            if self._channel.can_settle:
                self._finish()
        except ConquietError as also:
            notes.append(f"and what was read could not be settled and handed back: {also}")
        for settlement in self._unsettled.settlements:
            self._tally.unsettled(settlement)
        report = self._tally.report(self._channel, "error", len(self._queued))
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
