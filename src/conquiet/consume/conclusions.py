"""Conclusions: what becomes of messages that have ended is counted, logged and queued to be settled."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Generic

from conquiet.consume.attempt import Attempt
from conquiet.consume.channel import M
from conquiet.consume.loop_state import LoopState
from conquiet.consume.outcome import Settlement
from conquiet.consume.workers import OwnThread, Workers
from conquiet.errors import DatabaseUnavailableError, MalformedEntry
from conquiet.logs import MessageLog, are_error_texts_hidden
from conquiet.masking import mask

_log = MessageLog(logging.getLogger(__name__))

#: How long the loop waits before it looks again, and for new messages while others are in handlers.
MOMENT_S = 0.02

_WHAT_FOLLOWS = {
    "leave": "stays pending",
    "retry": "will be retried",
    "requeue": "will be retried as a copy",
    "dead_letter": "becomes a dead letter",
    "hand_back": "will be tried again as the same attempt",
}


class Conclusions(Generic[M]):
    """Those of one loop; only its thread calls them."""

    def __init__(self, state: LoopState[M], handlers: OwnThread[M] | Workers[M]) -> None:
        self._handlers = handlers
        self._channel, self._spans, self._tally = state.channel, state.spans, state.tally
        self._decisions, self._unsettled = state.decisions, state.unsettled
        self._queued = state.queued.messages
        self._raises = state.limits.on_error == "raise"

    def of_ended(self, wait_s: float = 0) -> None:
        """Decide what becomes of all that has ended, maybe after a wait for one."""
        attempt = self._handlers.take_ended(wait_s)
        while attempt is not None:
            self._conclude(attempt)
            attempt = self._handlers.take_ended() if self._handlers.count else None

    def wait(self) -> None:
        """Wait for a moment, or until a handler has ended; what ended before is settled in time."""
        self.of_ended(MOMENT_S)
        if self._unsettled.are_overdue:
            self._unsettled.settle()

    def wait_for_all(self) -> BaseException | None:
        """Settle what ends in other threads, until none is in a handler; returns the first failure."""
        self._handlers.end()
        failed: BaseException | None = None
        while self._handlers.is_busy:
            attempt = self._handlers.take_ended(MOMENT_S)
            try:
                if attempt is not None:
                    self._conclude(attempt)
                if failed is None and self._unsettled.are_overdue:
                    self._unsettled.settle()
            except BaseException as error:  # noqa: BLE001 -- returned when nothing runs any more
                failed = failed or error
        return failed

    def without_given_up(self, messages: Sequence[M]) -> list[M]:
        """Those whose handlers are to run; after an error all that is undecided is queued again."""
        left = deque(messages)
        kept: list[M] = []
        try:
            while left:
                settlement = self._decisions.without_handler(left[0])
                msg = left.popleft()
                if settlement is None:
                    kept.append(msg)
                else:
                    self._tally.taken += 1
                    self.record(settlement, msg)
        except DatabaseUnavailableError as error:
            self._decisions.put_back([*kept, *left], error, self._queued, time.monotonic())
            return []
        except BaseException:
            self._queued.extendleft(reversed([*kept, *left]))
            raise
        return kept

    def record(self, settlement: Settlement, delivered: M | MalformedEntry) -> None:
        """Count, log and settle with the next call what becomes of one message."""
        self._unsettled.add(settlement)
        self._tally.decided(settlement)
        if settlement.error is not None or settlement.kind == "dead_letter":
            self._log_failure(settlement, delivered)

    def _conclude(self, attempt: Attempt[M]) -> None:
        try:
            settlements = self._decisions.decide(attempt)
        except DatabaseUnavailableError as error:
            self._decisions.put_back(attempt.messages, error, self._queued, attempt.since)
            return
        except Exception:
            self._tally.left_pending(len(attempt.messages))
            raise
        except BaseException:
            self._queued.extendleft(reversed(attempt.messages))
            raise
        if not settlements:
            self._decisions.put_back_alone(attempt, self._queued)
        for msg, settlement in zip(attempt.messages, settlements, strict=False):
            self._tally.taken += 1
            self.record(settlement, msg)
            if self._decisions.aside.messages and settlement.outcome == "handled":
                self._decisions.aside.suspect(attempt.since)
            if settlement.error is not None and self._raises:
                raise settlement.error

    def _log_failure(self, settlement: Settlement, delivered: M | MalformedEntry) -> None:
        error, reason = settlement.error, mask(settlement.reason or "")
        if error is not None and are_error_texts_hidden():
            error, reason = None, type(error).__name__
        what_follows = _WHAT_FOLLOWS[settlement.kind] + (f" ({reason})" if reason else "")
        _log.warning(
            "%s failed at attempt %s and %s",
            *(*self._channel.described(delivered), what_follows),
            exc_info=error,
            extra=self._spans.log_fields(settlement.entry_id, **getattr(delivered, "log_fields", {})),
        )
