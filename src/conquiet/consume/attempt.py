"""Attempts: messages through their handler, in one thread; what becomes of them is decided elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.gate import Gate
from conquiet.consume.outcome import Ack, DeadLetter, Outcome
from conquiet.consume.spans import Spans
from conquiet.db import is_connection_lost, is_refused
from conquiet.errors import CommitUnknownError, DatabaseUnavailableError
from conquiet.logs import MessageLog
from conquiet.tracing import active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing

_log = MessageLog(logging.getLogger(__name__))


# Not frozen, as one is made for every message: that would double what it costs.
@dataclass(slots=True)
class Attempt(Generic[M]):
    """One message, or a batch of them, that was in the handler."""

    messages: Sequence[M]
    #: When it began (monotonic), and how long it took.
    since: float
    seconds: float = 0.0
    #: Of each message; none after an error, which is that of all of them.
    outcomes: Sequence[Outcome] = ()
    error: BaseException | None = None
    #: Whether the database could not be used after an error that came from it.
    is_database_unavailable: bool = False
    processings: Sequence[Processing] = ()


class Attempts(Generic[M]):
    """The attempts of one thread, one after the other."""

    def __init__(self, channel: Channel[M], handling: Handling[M], spans: Spans, gate: Gate) -> None:
        self._handling = handling
        self._spans = spans
        self._gate = gate
        self._tolerates_outages = channel.max_outages_of_message > 0
        self.consumer = channel.where.consumer or ""
        #: The message in the handler, of a batch the first, and since when (monotonic); others look at both.
        self.in_handler: M | None = None
        self.in_handler_since = 0.0
        #: While a handler runs, another thread may use the channel, with this lock. The loop's own thread has
        #: it only for a moment at the end, and can have it again: no interrupt in between is a deadlock.
        self._lock = threading.RLock()
        self._is_handling = False

    @contextmanager
    def while_handling(self) -> Iterator[M | None]:
        """For another thread: the message whose handler runs; its end then waits for the end of the block."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self.in_handler if self._is_handling else None
        finally:
            self._lock.release()

    def end_handling(self) -> None:
        """No other thread uses the channel any more; again after an interrupt, which may have come before."""
        with self._lock:
            self._is_handling = False

    def run(self, messages: Sequence[M]) -> Attempt[M]:
        """Handle one message or a batch, and leave the gate."""
        attempt = Attempt(messages, time.monotonic())
        self.in_handler_since = attempt.since
        self.in_handler = messages[0]
        try:
            traces = active_traces()
            if traces is None:
                self._run_handler(attempt)
            else:
                with self._spans.processing(traces, messages) as attempt.processings:
                    self._run_handler(attempt)
        finally:
            self.in_handler = None
            self._gate.leave()
        return attempt

    def release(self) -> None:
        """As `Handling.release`; a thread goes on, with another connection, if that fails."""
        try:
            self._handling.release()
        except Exception:  # noqa: BLE001 -- the log has it
            _log.exception("a connection could not be given back, as by a listener of its pool")

    def leave_gate(self) -> None:
        """Leave the gate for a message whose handler does not run."""
        self._gate.leave()

    def _run_handler(self, attempt: Attempt[M]) -> None:
        messages = attempt.messages
        try:
            self._is_handling = True
            try:
                if len(messages) == 1:
                    attempt.outcomes = (self._handling.handle(messages[0]),)
                else:
                    attempt.outcomes = self._handling.handle_batch(messages)
            finally:
                self.end_handling()
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a settlement that is counted and logged
            # Again: it may be of a signal that came while the first call waited.
            self.end_handling()
            self._examine(attempt, error)
        attempt.seconds = time.monotonic() - attempt.since

    def _examine(self, attempt: Attempt[M], error: Exception) -> None:
        """Ask the database about an error while its thread, and no other, has to wait for the answer."""
        attempt.outcomes, attempt.error = (), error
        try:
            is_unknown = isinstance(error, CommitUnknownError) and len(attempt.messages) == 1
            if is_unknown and self._handling.has_handled(attempt.messages[0]):
                # Else a message that was committed at its last attempt would become a dead letter.
                attempt.outcomes, attempt.error = (Ack(),), None
                return
            if is_refused(error) or (self._tolerates_outages and is_connection_lost(error)):
                attempt.is_database_unavailable = self._handling.is_database_unavailable()
        except DatabaseUnavailableError as unavailable:
            attempt.error = unavailable


def end_spans(attempt: Attempt[M], outcomes: Sequence[str] = ()) -> None:
    """End the spans of an attempt, with what was decided, or without when it is to be tried again."""
    for number, processing in enumerate(attempt.processings):
        result = attempt.outcomes[number] if attempt.outcomes else attempt.error
        if isinstance(result, BaseException):
            processing.failed(result)
        elif isinstance(result, DeadLetter):
            processing.refused(result.reason)
        processing.ended(outcomes[number] if outcomes else None)
