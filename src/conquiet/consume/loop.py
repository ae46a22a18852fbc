"""The loop under every drain: batches in, one transaction per message, acks out, nothing lost on the way."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from conquiet.arguments import check_positive_int, check_positive_seconds
from conquiet.consume.handling import MessageHandling
from conquiet.consume.observing import ObservedHandling
from conquiet.consume.quarantine import quarantine
from conquiet.consume.report import DrainReport, StopReason
from conquiet.consume.sources import Source
from conquiet.errors import (
    ConquietError,
    DatabaseUnavailableError,
    DrainError,
    DrainFailure,
    MalformedEntry,
    MalformedEntryError,
)
from conquiet.logs import MessageLog, naming_messages_of
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.queue.message import Delivery, entry_id_order

_log = MessageLog(logging.getLogger(__name__))

#: A committed message is acked within this time, or as soon as the handler that runs then has ended.
_ACK_WITHIN_S = 0.1
_FIRST_BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain stops, and what it does with a message that fails."""

    max_messages: int
    max_duration_s: float | None = None
    on_error: Literal["raise", "continue"] = "raise"
    max_failures: int | None = None
    batch_size: int = 100
    should_stop: Callable[[], bool] | None = None
    max_deliveries: int | None = None
    quarantine_to: str | None = None

    def __post_init__(self) -> None:
        check_positive_int("max_messages", self.max_messages)
        check_positive_int("batch_size", self.batch_size)
        for name in ("max_failures", "max_deliveries"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.max_duration_s is not None:
            check_positive_seconds("max_duration_s", self.max_duration_s)
        if self.on_error not in ("raise", "continue"):
            raise ValueError(f"on_error must be 'raise' or 'continue', got {self.on_error!r}")


def next_batch_size(size: int, seconds: float, largest: int) -> int:
    """Double after a quick batch, halve after a slow one: a slow handler must not sit on many messages."""
    if seconds < 0.25:
        return min(size * 2, largest)
    return max(size // 2, 1) if seconds > 1 else size


class DrainLoop:
    """One drain, from its first read to its report; used once."""

    def __init__(
        self, queue: RedisStreamsQueue, source: Source, handling: MessageHandling, limits: DrainLimits
    ) -> None:
        self._queue = queue
        self._source = source
        self._handling = handling
        self._observed = ObservedHandling(queue, handling)
        self._limits = limits
        self._counts: Counter[str] = Counter()
        self._first_id: str | None = None
        self._last_id: str | None = None
        self._failures: list[DrainFailure] = []
        #: Of what is no message: such entries must not use up the limits of their neighbours.
        self._malformed_read = 0
        self._malformed_failed = 0
        #: Read and not begun.
        self._held: deque[QueueMessage] = deque()
        self._held_since = 0.0
        #: Committed and not acked.
        self._unacked: list[str] = []
        self._unacked_since = 0.0
        self._started = time.monotonic()

    def run(self) -> DrainReport:
        """Drain until a limit is reached, the source ends, or an error leaves."""
        try:
            with self._queue.exclusive(), naming_messages_of(self._observed):
                stopped_by = self._loop()
                self._let_go()
        except BaseException as error:
            self._let_go_after(error)
            raise
        report = self._finished(stopped_by)
        if self._failures:
            raise DrainError(
                stream=report.stream, group=report.group, report=report, failures=self._failures
            ) from self._failures[0].error
        return report

    def _loop(self) -> StopReason:
        size = min(_FIRST_BATCH, self._limits.batch_size)
        while (reason := self._reason_to_stop()) is None:
            asked = min(size, self._limits.max_messages - self._messages_read)
            delivery = self._next_batch(asked)
            if delivery is None:
                return "idle"
            begun = time.monotonic()
            self._take(delivery)
            self._handle_held()
            if len(delivery) == size:
                size = next_batch_size(size, time.monotonic() - begun, self._limits.batch_size)
            if len(delivery) < asked:
                # The next read may wait.
                self._handling.release()
        return reason

    def _next_batch(self, asked: int) -> Delivery | None:
        if self._observed.is_traced:
            self._ack()
        started = time.time_ns()
        delivery = self._source.next_batch(self._unacked, asked, self._remaining_ms())
        self._unacked.clear()
        if delivery is not None:
            self._observed.has_read(started, len(delivery))
        return delivery

    def _reason_to_stop(self) -> StopReason | None:
        limits = self._limits
        if limits.should_stop is not None and limits.should_stop():
            return "stop"
        failed = self._counts["failed"] - self._malformed_failed
        if limits.max_failures is not None and failed >= limits.max_failures:
            return "max_failures"
        if limits.max_duration_s is not None and time.monotonic() - self._started >= limits.max_duration_s:
            return "max_duration"
        if self._messages_read >= limits.max_messages and not self._held:
            return "max_messages"
        return None

    @property
    def _messages_read(self) -> int:
        return self._counts["read"] - self._malformed_read

    def _remaining_ms(self) -> int | None:
        if self._limits.max_duration_s is None:
            return None
        return max(1, int((self._started + self._limits.max_duration_s - time.monotonic()) * 1000))

    def _take(self, delivery: Delivery) -> None:
        self._held.extend(delivery.messages)
        self._held_since = time.monotonic()
        ids = [msg.id for msg in delivery.messages] + [entry.id for entry in delivery.malformed]
        if ids:
            self._counts["read"] += len(ids)
            self._malformed_read += len(delivery.malformed)
            self._first_id = self._first_id or min(ids, key=entry_id_order)
            self._last_id = max(ids, key=entry_id_order)
        for entry in delivery.malformed:
            self._set_aside(entry)

    def _set_aside(self, entry: MalformedEntry) -> None:
        if self._quarantine_if_worn_out(entry, reason=f"malformed: {entry.reason}"):
            return
        self._malformed_failed += 1
        config = self._queue.config
        error = MalformedEntryError(
            "drain", stream=config.stream_key, group=config.consumer_group, entries=[entry], messages=()
        )
        self._fail(entry.id, error)

    def _handle_held(self) -> None:
        while self._held and self._reason_to_stop() is None:
            self._renew_if_waiting_long()
            if not self._held:
                return
            msg = self._held[0]
            is_gone = self._quarantine_if_worn_out(msg, reason=f"delivered {msg.delivery_count} times")
            self._held.popleft()
            if not is_gone:
                self._handle(msg)
            if self._unacked and time.monotonic() - self._unacked_since > _ACK_WITHIN_S:
                self._ack()

    def _handle(self, msg: QueueMessage) -> None:
        try:
            outcome = self._observed.handle(msg)
        except Exception as error:
            self._fail(msg.id, error)
            # Without a database the next ones would fail in the same way.
            if self._limits.on_error == "raise" or isinstance(error, DatabaseUnavailableError):
                raise
            return
        except BaseException:
            self._counts["failed"] += 1
            raise
        if not self._unacked:
            self._unacked_since = time.monotonic()
        self._unacked.append(msg.id)
        self._counts[outcome.value] += 1

    def _renew_if_waiting_long(self) -> None:
        # Others may claim what waits here; ask which ones are still ours before it comes to that.
        if (time.monotonic() - self._held_since) * 1000 < self._queue.config.claim_idle_ms / 2:
            return
        still_held = self._queue.renew(list(self._held))
        self._counts["taken_over"] += len(self._held) - len(still_held)
        self._held = deque(still_held)
        self._held_since = time.monotonic()

    def _quarantine_if_worn_out(self, entry: QueueMessage | MalformedEntry, *, reason: str) -> bool:
        limits = self._limits
        if limits.max_deliveries is None or entry.delivery_count <= limits.max_deliveries:
            return False
        if isinstance(entry, QueueMessage) and self._handling.has_handled(entry):
            # Committed and not acked: a replay from the quarantine would have a new id, and its effect twice.
            return False
        moved_to = quarantine(self._queue, entry, reason=reason, to=limits.quarantine_to)
        self._counts["taken_over" if moved_to is None else "quarantined"] += 1
        return True

    def _fail(self, entry_id: str, error: Exception) -> None:
        self._counts["failed"] += 1
        self._failures.append(DrainFailure(entry_id, error))
        config = self._queue.config
        place = (entry_id, config.stream_key, config.consumer_group)
        told = self._observed.extra_of(entry_id)
        _log.warning("entry %s of stream %r failed for group %r", *place, exc_info=error, extra=told)

    def _let_go(self) -> None:
        # Acks first: a committed message must not be claimed as if it were not.
        self._ack()
        if self._held:
            given = self._queue.hand_back(list(self._held))
            self._counts["handed_back"] += len(given)
            self._counts["taken_over"] += len(self._held) - len(given)
            self._held.clear()

    def _ack(self) -> None:
        self._observed.ack(self._unacked)
        self._unacked.clear()

    def _let_go_after(self, error: BaseException) -> None:
        notes = []
        try:
            self._let_go()
        except ConquietError as also:
            notes.append(f"and the drain could not let go of what it held: {also}")
        report = self._finished("error")
        notes.append(f"drain report: {report.to_json()}")
        # A user's exception class may refuse notes and attributes; it must leave all the same.
        with suppress(Exception):
            for note in notes:
                error.add_note(note)
            error.drain_report = report  # type: ignore[attr-defined]  # documented in `drain`

    def _finished(self, stopped_by: StopReason) -> DrainReport:
        return DrainReport(
            stream=self._queue.config.stream_key,
            group=self._queue.config.consumer_group,
            first_id=self._first_id,
            last_id=self._last_id,
            seconds=time.monotonic() - self._started,
            stopped_by=stopped_by,
            failures=tuple(self._failures),
            **self._counts,
        )
