"""Attempts: one message through its handler, with its spans, and the database that may be unavailable."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic

from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.outage import Outage
from conquiet.consume.outcome import Ack, DeadLetter, Outcome, Settlement
from conquiet.consume.set_aside import SetAside
from conquiet.consume.spans import Spans
from conquiet.db import is_connection_lost, is_refused
from conquiet.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    InboxRowLockedError,
    WriteRefusedError,
)
from conquiet.logs import MessageLog
from conquiet.tracing import active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing

_log = MessageLog(logging.getLogger(__name__))

#: So many messages in a row whose writes are refused show that the database is at fault.
_REFUSED_IN_A_ROW = 3


class Attempts(Generic[M]):
    """The attempts of one loop, one after the other."""

    def __init__(self, channel: Channel[M], handling: Handling[M], spans: Spans) -> None:
        self._channel = channel
        self._handling = handling
        self._spans = spans
        #: On while the database is unavailable.
        self.database = Outage(channel.max_outage_s)
        #: The last message during which the database became unavailable, and how often it did.
        self._outages_of: dict[str, int] = {}
        #: What the database refused, while others show who is at fault.
        self.aside: SetAside[M] = SetAside()
        #: Attempts that ended in anything but an ack.
        self.failed = 0
        self.consumer = channel.where.consumer or ""
        #: The message in the handler, and since when (monotonic); other threads look at both.
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

    def handle(self, msg: M) -> Settlement:
        """Handle the message, unless it is given up without, and decide what becomes of it.

        Raises:
            DatabaseUnavailableError: it was not an attempt; see `put_back`.
        """
        settlement = self._channel.settlement_without_handler(msg)
        if settlement is not None:
            # Committed and not acked: a replay of the dead letter would do it a second time.
            is_given_up = settlement.kind == "dead_letter"
            has_handled = is_given_up and self._handling.has_handled(msg)
            if is_given_up and self._handling.has_inbox:
                self.database.ended()
            if not has_handled:
                return settlement
        self.in_handler_since = time.monotonic()
        self.in_handler = msg
        try:
            traces = active_traces()
            if traces is None:
                settlement = self._run_handler(msg, None)
            else:
                with self._spans.processing(traces, msg) as processing:
                    settlement = self._run_handler(msg, processing)
                    processing.ended(settlement.outcome)
        finally:
            self.in_handler = None
        self.failed += settlement.kind != "ack"
        if self.aside.messages:
            self.aside.forget(msg.id)
        return settlement

    def put_back(self, msg: M, error: DatabaseUnavailableError, queued: deque[M]) -> None:
        """Have a message handled again as the same attempt, next or when others have shown who is at fault.

        Raises:
            DatabaseUnavailableError: that has lasted too long.
        """
        msg = self._channel.as_delivered(msg)
        what, waits = "database unavailable, entry", "waits"
        # A stream's drain tolerates no outage, but one or two refused messages do not make one.
        is_outage = True
        if isinstance(error, WriteRefusedError):
            self._channel.set_aside(msg)
            waits = f"has waited for {self.aside.add(msg, error, self.in_handler_since):.1f} s"
            is_outage = self.database.max_s > 0 or self.aside.refused >= _REFUSED_IN_A_ROW
        else:
            queued.appendleft(msg)
        if isinstance(error, InboxRowLockedError):
            # However long that lasts: the database answers, and one frozen worker must not end the others.
            what = "inbox row locked, entry"
            self.database.ended()
        elif self.database.failed() and is_outage:
            raise error
        extra = self._spans.log_fields(msg.id)
        _log.warning("%s %s of %s %s: %s", what, msg.id, self._channel, waits, error, extra=extra)

    def take_due(self) -> list[M]:
        """What was set aside and is to be tried again, in order."""
        return [msg for due in self.aside.take_due() for msg in self._channel.take_back(due)]

    def _run_handler(self, msg: M, processing: Processing | None) -> Settlement:
        result: Outcome | Exception
        try:
            self._is_handling = True
            try:
                result = self._handling.handle(msg)
            finally:
                self.end_handling()
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a settlement that is counted and logged
            # Again: it may be of a signal that came while the first call waited.
            self.end_handling()
            self._raise_if_unavailable(msg, error)
            # Else a message that was committed at its last attempt would become a dead letter.
            is_committed = isinstance(error, CommitUnknownError) and self._handling.has_handled(msg)
            result = Ack() if is_committed else error
        if self.database.is_on:
            self.database.ended()
        if processing is not None and isinstance(result, Exception):
            processing.failed(result)
        elif processing is not None and isinstance(result, DeadLetter):
            processing.refused(result.reason)
        return self._channel.decide(msg, result, time.monotonic() - self.in_handler_since)

    def _raise_if_unavailable(self, msg: M, error: Exception) -> None:
        if isinstance(error, DatabaseUnavailableError):
            raise error
        limit = self._channel.max_outages_of_message
        if is_connection_lost(error):
            if not limit or not self._handling.is_database_unavailable():
                return
            # One that takes the database down each time does fail in the end.
            self._outages_of = {msg.id: self._outages_of.get(msg.id, 0) + 1}
            if self._outages_of[msg.id] <= limit:
                text = f"the database became unavailable while {msg.id} was handled: {error}"
                raise DatabaseUnavailableError(text) from error
        elif is_refused(error):
            if self._handling.is_database_unavailable():
                raise DatabaseUnavailableError(f"the database refuses to write: {error}") from error
            if not self.aside.is_at_fault(msg.id, max_alone=limit if self.database.has_lasted() else 0):
                raise WriteRefusedError(f"the database refused what {msg.id} wrote: {error}") from error
