"""The engine: the one loop under every drain and every consumer of a topic."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic

from conquiet.consume.channel import Channel, M
from conquiet.consume.handling import MessageHandling
from conquiet.consume.limits import DrainLimits
from conquiet.consume.observing import Spans
from conquiet.consume.outage import Outage
from conquiet.consume.outcome import DeadLetter, Outcome, Settlement
from conquiet.consume.report import DrainReport, StopReason
from conquiet.consume.tally import Tally
from conquiet.db import is_connection_lost
from conquiet.errors import ConquietError, DatabaseUnavailableError, DrainError
from conquiet.logs import MessageLog, message_fields, naming_messages_of
from conquiet.tracing import active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing

_log = MessageLog(logging.getLogger(__name__))

#: A handled message is settled within this time, or as soon as the handler that runs then has ended.
_SETTLE_WITHIN_S = 0.1
_FIRST_BATCH = 10


def next_batch_size(size: int, seconds: float, largest: int) -> int:
    """Double after a quick batch, halve after a slow one: a slow handler must not make many messages wait."""
    if seconds < 0.25:
        return min(size * 2, largest)
    return max(size // 2, 1) if seconds > 1 else size


class DrainLoop(Generic[M]):
    """One run over one channel, from its first read to its report; used once, by one thread.

    For each message: open a transaction, handle, commit, settle, in this order. Whatever ends the loop, what
    was committed is settled, and what was read and not begun is handed back.
    """

    def __init__(
        self,
        channel: Channel[M],
        handling: MessageHandling,
        limits: DrainLimits,
        *,
        gate: threading.Event | None = None,
    ) -> None:
        self._channel = channel
        self._handling = handling
        self._limits = limits
        #: Cleared while the consumer is paused.
        self._gate = gate
        self._spans = Spans(channel.where)
        self._tally = Tally()
        self._database = Outage(channel.max_outage_s)
        #: The last message during which the database became unavailable, and how often it did.
        self._outages_of: dict[str, int] = {}
        self._is_stopping = False
        #: Read and not begun, in order.
        self._queued: deque[M] = deque()
        #: Decided and not settled.
        self._unsettled: list[Settlement] = []
        self._unsettled_since = 0.0
        self._idle_since: float | None = None
        #: Whether the last read brought less than was asked for: the next one may wait.
        self._may_wait = True
        self.consumer = channel.where.consumer or ""
        #: The message in the handler, and since when (monotonic); other threads look at both.
        self.handled: M | None = None
        self.handled_since = 0.0

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
            with naming_messages_of(self):
                stopped_by = self._work()
                self._finish()
        except BaseException as error:
            self._finish_after(error)
            raise
        report = self._tally.report(self._channel, stopped_by)
        if self._tally.has_left_pending:
            failures = self._tally.failures
            place = {"stream": report.stream, "group": report.group}
            raise DrainError(**place, report=report, failures=failures) from failures[0].error
        return report

    def _work(self) -> StopReason:
        size = self._limits.batch_size
        if self._channel.is_shared:
            size = min(_FIRST_BATCH, size)
        while (reason := self._reason_to_stop()) is None:
            if self._has_to_wait():
                continue
            asked, read = size, len(self._queued)
            if not read:
                if self._limits.max_messages is not None:
                    asked = min(size, self._limits.max_messages - self._tally.taken)
                found = self._read(asked)
                if found is None:
                    return "idle"
                read = found
            begun = time.monotonic()
            while self._queued and self._reason_to_stop() is None and not self._has_to_wait():
                msg = self._channel.next_message(self._queued)
                if msg is not None and self._has_begun(msg):
                    self._handle(msg)
                if self._unsettled and time.monotonic() - self._unsettled_since > _SETTLE_WITHIN_S:
                    self._settle()
            if read == size and self._channel.is_shared:
                size = next_batch_size(size, time.monotonic() - begun, self._limits.batch_size)
        return reason

    def _reason_to_stop(self) -> StopReason | None:
        limits = self._limits
        if self._is_stopping or (limits.should_stop is not None and limits.should_stop()):
            return "stop"
        if limits.max_failures is not None and self._tally.failed_attempts >= limits.max_failures:
            return "max_failures"
        now = time.monotonic()
        if limits.max_duration_s is not None and now - self._tally.started >= limits.max_duration_s:
            return "max_duration"
        if limits.max_messages is not None and self._tally.taken >= limits.max_messages:
            return "max_messages"
        if self._idle_since is None or limits.idle_ms is None:
            return None
        return "idle" if (now - self._idle_since) * 1000 >= limits.idle_ms else None

    def _has_to_wait(self) -> bool:
        """Wait for a moment if the consumer is paused or the database is unavailable."""
        is_paused = self._gate is not None and not self._gate.is_set()
        if not is_paused and self._database.is_time_to_try():
            return False
        self._handling.release()
        self._settle()
        time.sleep(0.02)
        return True

    def _read(self, size: int) -> int | None:
        """Settle, read up to `size` messages, and return how many entries came; `None` at the end."""
        if self._may_wait or self._gate is not None:
            # Not only before a wait: with fewer connections than threads, busy ones take turns.
            self._handling.release()
        if self._spans.are_on:
            # Else the wait for new messages would be a part of the ack's span.
            self._settle()
        started, started_ns = time.monotonic(), time.time_ns()
        batch = self._channel.read(self._unsettled, size, self._wait_ms(started))
        self._has_settled(started_ns)
        if batch is None:
            return None
        count = len(batch.messages) + len(batch.malformed)
        self._may_wait = count < size
        if count:
            self._idle_since = None
            self._tally.read(batch)
            self._spans.received(batch.messages, started_ns)
            self._queued.extend(batch.messages)
            for entry in batch.malformed:
                self._decided(self._channel.decide_malformed(entry), None)
        elif self._idle_since is None:
            self._idle_since = started
        return count

    def _wait_ms(self, now: float) -> int | None:
        waits = []
        if self._limits.idle_ms is not None:
            waited_s = 0.0 if self._idle_since is None else now - self._idle_since
            waits.append(self._limits.idle_ms - waited_s * 1000)
        if self._limits.max_duration_s is not None:
            waits.append((self._tally.started + self._limits.max_duration_s - now) * 1000)
        return max(1, int(min(waits))) if waits else None

    def _has_begun(self, msg: M) -> bool:
        begin = self._channel.begin(msg)
        if begin is None:
            return True
        # In one call with those before it: if this message kills the process, they are settled.
        self._unsettled.append(begin)
        self._settle()
        return not begin.is_refused

    def _handle(self, msg: M) -> None:
        try:
            settlement = self._channel.give_up(msg)
            # Committed and not acked: a replay of the dead letter would do it a second time.
            if settlement is None or (settlement.kind == "dead_letter" and self._handling.has_handled(msg)):
                settlement = self._attempt(msg)
                self._tally.failed_attempts += settlement.kind != "ack"
        except DatabaseUnavailableError as error:
            # Begun and not failed: it is handled again as the same attempt, before all others.
            self._queued.appendleft(msg)
            self._tolerate_outage(msg, error)
            return
        except BaseException:
            self._tally.interrupted()
            raise
        self._tally.taken += 1
        self._decided(settlement, msg)
        if settlement.error is not None and self._limits.on_error == "raise":
            raise settlement.error

    def _attempt(self, msg: M) -> Settlement:
        self.handled_since = time.monotonic()
        self.handled = msg
        try:
            traces = active_traces()
            if traces is None:
                return self._settlement_of(msg, None)
            with self._spans.processing(traces, msg) as processing:
                settlement = self._settlement_of(msg, processing)
                processing.ended(settlement.outcome)
            return settlement
        finally:
            self.handled = None

    def _settlement_of(self, msg: M, processing: Processing | None) -> Settlement:
        result: Outcome | Exception
        try:
            result = self._handling.handle(msg)
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a settlement that is counted and logged
            self._raise_if_unavailable(msg, error)
            result = error
        if self._database.is_on:
            self._database.ended()
        if processing is not None and isinstance(result, Exception):
            processing.failed(result)
        elif processing is not None and isinstance(result, DeadLetter):
            processing.refused(result.reason)
        return self._channel.decide(msg, result, time.monotonic() - self.handled_since)

    def _raise_if_unavailable(self, msg: M, error: Exception) -> None:
        if isinstance(error, DatabaseUnavailableError):
            raise error
        limit = self._channel.max_outages_of_message
        if not limit or not is_connection_lost(error) or not self._handling.is_database_unavailable():
            return
        # One that takes the database down each time does fail in the end.
        self._outages_of = {msg.id: self._outages_of.get(msg.id, 0) + 1}
        if self._outages_of[msg.id] <= limit:
            text = f"the database became unavailable while {msg.id} was handled: {error}"
            raise DatabaseUnavailableError(text) from error

    def _tolerate_outage(self, msg: M, error: DatabaseUnavailableError) -> None:
        if self._database.failed():
            raise error
        self._channel.count_outage()
        facts = (msg.id, self._channel, error)
        _log.warning("entry %s of %s waits for the database: %s", *facts, extra=self._fields(msg.id))

    def _decided(self, settlement: Settlement, msg: M | None) -> None:
        if not self._unsettled:
            self._unsettled_since = time.monotonic()
        self._unsettled.append(settlement)
        self._tally.decided(settlement)
        error = settlement.error
        if error is not None:
            attempt = settlement.delivery_count if msg is None else msg.attempt
            facts = (settlement.entry_id, self._channel, attempt, settlement.outcome)
            extra = self._fields(settlement.entry_id)
            _log.warning("entry %s of %s failed at attempt %s: %s", *facts, exc_info=error, extra=extra)

    def _settle(self) -> None:
        if self._unsettled:
            started_ns = time.time_ns()
            try:
                self._channel.settle(self._unsettled)
            except Exception as error:
                self._spans.settled(self._unsettled, started_ns, str(error))
                raise
            self._has_settled(started_ns)

    def _has_settled(self, started_ns: int) -> None:
        settled, self._unsettled = self._unsettled, []
        for settlement in settled:
            if settlement.is_refused:
                self._tally.refused(settlement)
        self._spans.settled(settled, started_ns)

    def _finish(self) -> None:
        # Settled first: a committed message must not be claimed as if it were not.
        self._settle()
        self._tally.handed_back(self._channel.hand_back(self._queued))
        self._queued.clear()

    def _finish_after(self, error: BaseException) -> None:
        notes = []
        try:
            if self._channel.can_settle:
                self._finish()
        except ConquietError as also:
            notes.append(f"and what was read could not be settled and handed back: {also}")
        report = self._tally.report(self._channel, "error")
        notes.append(f"drain report: {report.to_json()}")
        # A user's exception class may refuse notes and attributes; it must leave all the same.
        with suppress(Exception):
            for note in notes:
                error.add_note(note)
            error.drain_report = report  # type: ignore[attr-defined]  # documented in `DrainLimits`

    def _fields(self, entry_id: str) -> dict[str, Any]:
        where = self._channel.where
        return message_fields(
            context=self._spans.context_of(entry_id),
            topic=None if where.partition is None else where.destination,
            stream=self._channel.stream,
            partition=where.partition,
            group=where.group,
            message_id=entry_id,
            consumer=self.consumer,
        )
