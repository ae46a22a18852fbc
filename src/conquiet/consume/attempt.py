"""Attempts: one message through its handler, with its spans, and the database that may be unavailable."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Generic

from conquiet.consume.channel import Channel, M
from conquiet.consume.handling import MessageHandling
from conquiet.consume.outage import Outage
from conquiet.consume.outcome import DeadLetter, Outcome, Settlement
from conquiet.consume.spans import Spans
from conquiet.db import is_connection_lost
from conquiet.errors import DatabaseUnavailableError
from conquiet.logs import MessageLog
from conquiet.tracing import active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing

_log = MessageLog(logging.getLogger(__name__))


class Attempts(Generic[M]):
    """The attempts of one loop, one after the other."""

    def __init__(self, channel: Channel[M], handling: MessageHandling, spans: Spans) -> None:
        self._channel = channel
        self._handling = handling
        self._spans = spans
        #: On while the database is unavailable.
        self.database = Outage(channel.max_outage_s)
        #: The last message during which the database became unavailable, and how often it did.
        self._outages_of: dict[str, int] = {}
        #: Attempts that ended in anything but an ack.
        self.failed = 0
        self.consumer = channel.where.consumer or ""
        #: The message in the handler, and since when (monotonic); other threads look at both.
        self.handled: M | None = None
        self.handled_since = 0.0

    def settlement_of(self, msg: M) -> Settlement:
        """Handle the message, unless it is given up without, and decide what becomes of it.

        Raises:
            DatabaseUnavailableError: it was not an attempt; see `tolerate`.
        """
        settlement = self._channel.settlement_without_handler(msg)
        if settlement is not None:
            # Committed and not acked: a replay of the dead letter would do it a second time.
            has_handled = settlement.kind == "dead_letter" and self._handling.has_handled(msg)
            self.database.ended()
            if not has_handled:
                return settlement
        self.handled_since = time.monotonic()
        self.handled = msg
        try:
            traces = active_traces()
            if traces is None:
                settlement = self._handle(msg, None)
            else:
                with self._spans.processing(traces, msg) as processing:
                    settlement = self._handle(msg, processing)
                    processing.ended(settlement.outcome)
        finally:
            self.handled = None
        self.failed += settlement.kind != "ack"
        return settlement

    def tolerate(self, msg: M, error: DatabaseUnavailableError) -> None:
        """Log that the message waits for the database; raises the error if that has lasted too long."""
        if self.database.failed():
            raise error
        extra = self._spans.log_fields(msg.id)
        _log.warning(
            "database unavailable, entry %s of %s waits: %s", msg.id, self._channel, error, extra=extra
        )

    def _handle(self, msg: M, processing: Processing | None) -> Settlement:
        result: Outcome | Exception
        try:
            result = self._handling.handle(msg)
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a settlement that is counted and logged
            self._raise_if_unavailable(msg, error)
            result = error
        if self.database.is_on:
            self.database.ended()
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
