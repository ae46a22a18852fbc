"""Decisions: what becomes of attempts, and of a database that may be unavailable."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Generic

from conquiet.consume.attempt import Attempt, end_spans
from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.outage import Outage
from conquiet.consume.outcome import Ack, Settlement, Skipped
from conquiet.consume.set_aside import SetAside
from conquiet.consume.spans import Spans
from conquiet.db import is_connection_lost, is_refused
from conquiet.errors import (
    DatabaseUnavailableError,
    InboxRowLockedError,
    LeaseLostError,
    WriteRefusedError,
)
from conquiet.logs import MessageLog, are_error_texts_hidden

_log = MessageLog(logging.getLogger(__name__))

#: So many messages in a row whose writes are refused show that the database is at fault.
_REFUSED_IN_A_ROW = 3


class Decisions(Generic[M]):
    """Those of one loop; only its thread calls them."""

    def __init__(
        self, channel: Channel[M], handling: Handling[M], spans: Spans, *, is_concurrent: bool
    ) -> None:
        self._channel = channel
        self._handling = handling
        self._spans = spans
        self._is_concurrent = is_concurrent
        #: On while the database is unavailable.
        self.database = Outage(channel.max_outage_s)
        #: How often the database became unavailable while a message was handled; until it is done.
        self._outages_of: dict[str, int] = {}
        #: Messages to be handled with none beside them and in no batch: one of them may be at fault.
        self.alone: set[str] = set()
        #: What the database refused, while others show who is at fault.
        self.aside: SetAside[M] = SetAside()
        #: Attempts that ended in anything but an ack.
        self.failed = 0

    def without_handler(self, msg: M) -> Settlement | None:
        """The settlement of a message that is given up without its handler.

        Raises:
            DatabaseUnavailableError: the inbox cannot be asked; see `put_back`.
        """
        settlement = self._channel.settlement_without_handler(msg)
        if settlement is not None and settlement.kind == "dead_letter":
            # Committed and not acked: a replay of the dead letter would do it a second time.
            has_handled = self._handling.has_handled(msg)
            if self._handling.has_inbox:
                self.database.ended()
            if has_handled:
                return None
        return settlement

    def decide(self, attempt: Attempt[M]) -> list[Settlement]:
        """What becomes of each message; nothing of a batch that failed, see `put_back_alone`.

        Raises:
            DatabaseUnavailableError: it was not an attempt; see `put_back`.
        """
        messages = attempt.messages
        try:
            if attempt.error is not None:
                self._raise_if_final(attempt, attempt.error)
            if self.database.is_on:
                self.database.ended()
            has_failed = attempt.error is not None or any(
                not isinstance(one, Ack | Skipped) for one in attempt.outcomes
            )
            if len(messages) > 1 and has_failed:
                end_spans(attempt)
                return []
            seconds = attempt.seconds / len(messages)
            settlements = []
            for number, msg in enumerate(messages):
                result = attempt.outcomes[number] if attempt.outcomes else attempt.error
                settlements.append(self._channel.decide(msg, result, seconds))  # type: ignore[arg-type]  # see `_raise_if_final`
        except BaseException as raised:
            attempt.error, attempt.outcomes = raised, ()
            end_spans(attempt)
            raise
        if attempt.processings:
            end_spans(attempt, [settlement.outcome for settlement in settlements])
        for settlement in settlements:
            self.failed += settlement.kind != "ack"
        if self.aside.messages or self.alone or self._outages_of:
            for msg, settlement in zip(messages, settlements, strict=True):
                self.aside.forget(msg.id)
                self.alone.discard(msg.id)
                # Its next attempt goes on with this count: else it takes the database down as often again.
                if settlement.kind in ("ack", "dead_letter"):
                    self._outages_of.pop(msg.id, None)
        return settlements

    def put_back(
        self, messages: Sequence[M], error: DatabaseUnavailableError, queued: deque[M], since: float
    ) -> None:
        """Have messages handled again as the same attempt, next or when others have shown who is at fault.

        Raises:
            DatabaseUnavailableError: that has lasted too long.
        """
        msg, *others = again = [self._channel.as_delivered(msg) for msg in messages]
        self._channel.count_unavailable(len(again))
        what, waits = "database unavailable, entry", "waits"
        # A stream's drain tolerates no outage, but one or two refused messages do not make one.
        is_outage = True
        if isinstance(error, WriteRefusedError):
            self._channel.set_aside(msg)
            waits = f"has waited for {self.aside.add(msg, error, since):.1f} s"
            is_outage = self.database.max_s > 0 or self.aside.refused >= _REFUSED_IN_A_ROW
        else:
            queued.extendleft(reversed(again))
        if isinstance(error, InboxRowLockedError):
            # However long that lasts: the database answers, and one frozen worker must not end the others.
            what = "inbox row locked, entry"
            self.database.ended()
        elif self.database.failed() and is_outage:
            raise error
        if others:
            waits = f"and {len(others)} more wait"
        extra = self._spans.log_fields(msg.id)
        _log.warning("%s %s of %s %s: %s", what, msg.id, self._channel, waits, error, extra=extra)

    def put_back_alone(self, attempt: Attempt[M], queued: deque[M]) -> None:
        """Have the messages of a failed batch handled once more, one by one; it was nobody's attempt."""
        messages = [self._channel.as_delivered(msg) for msg in attempt.messages]
        self.alone.update(msg.id for msg in messages)
        queued.extendleft(reversed(messages))
        text = "a batch of %d entries of %s failed and is handled again one by one, entry %s and so on: %s"
        why: object = attempt.error or "the handler answered for one of them"
        if attempt.error is not None and are_error_texts_hidden():
            why = type(attempt.error).__name__
        extra = self._spans.log_fields(messages[0].id)
        _log.warning(text, len(messages), self._channel, messages[0].id, why, extra=extra)

    def take_due(self) -> list[M]:
        """What was set aside and is to be tried again, in order."""
        return [msg for due in self.aside.take_due() for msg in self._channel.take_back(due)]

    def _raise_if_final(self, attempt: Attempt[M], error: BaseException) -> None:
        """Raise what ends the loop, and what is no attempt."""
        messages = attempt.messages
        if not isinstance(error, Exception) or isinstance(error, LeaseLostError):
            raise error
        if isinstance(error, DatabaseUnavailableError):
            if len(messages) == 1 or not isinstance(error, WriteRefusedError):
                raise error
        elif is_connection_lost(error):
            if attempt.is_database_unavailable and self._is_tolerated(messages):
                text = f"the database became unavailable while {messages[0].id} was handled: {error}"
                raise DatabaseUnavailableError(text) from error
        elif is_refused(error):
            if attempt.is_database_unavailable:
                raise DatabaseUnavailableError(f"the database refuses to write: {error}") from error
            limit = self._channel.max_outages_of_message if self.database.has_lasted() else 0
            # Of a batch nobody knows which message it was.
            if len(messages) == 1 and not self.aside.is_at_fault(messages[0].id, max_alone=limit):
                text = f"the database refused what {messages[0].id} wrote: {error}"
                raise WriteRefusedError(text) from error

    def _is_tolerated(self, messages: Sequence[M]) -> bool:
        """Whether it was no attempt; what takes the database down each time does fail in the end."""
        is_alone = len(messages) == 1 and (not self._is_concurrent or messages[0].id in self.alone)
        for msg in messages:
            self._outages_of[msg.id] = self._outages_of.get(msg.id, 0) + 1
        if is_alone:
            return self._outages_of[messages[0].id] <= self._channel.max_outages_of_message
        if any(self._outages_of[msg.id] > 1 for msg in messages):
            # Twice, and others were in handlers beside it: each one alone shows which one it is.
            for msg in messages:
                self.alone.add(msg.id)
                self._outages_of[msg.id] = 0
        return True
