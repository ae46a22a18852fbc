"""One attempt of one message: its handler, unless it needs none, and the database that may be away."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Protocol

from conquiet.errors import DatabaseUnavailableError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emit
from conquiet.mq.own.outage import Outage
from conquiet.mq.own.settlement import Failure, Settlement, SettlementRules
from conquiet.mq.own.settling import Settling

_log = MessageLog(logging.getLogger(__name__))


class HandleMessage(Protocol):
    """What a worker does with one message; one thread."""

    def __call__(self, msg: MqMessage, failure: Failure) -> Settlement:
        """Handle it, given what Redis kept of its earlier failures, and say how to settle it."""

    def release(self) -> None:
        """Give back what is kept from message to message: others may need it before the next one comes."""


@dataclass(slots=True)
class Running:
    """The message in the handler now, and since when (monotonic)."""

    msg: MqMessage
    since: float


class Attempts:
    """Makes the attempts of one worker, one after the other."""

    def __init__(
        self, settling: Settling, handle: HandleMessage, rules: SettlementRules, max_outage_s: float
    ) -> None:
        self._settling = settling
        self._handle = handle
        self._rules = rules
        self._database = Outage(max_outage_s)
        self.running: Running | None = None

    def is_time_to_try(self) -> bool:
        """Whether the database is there, as far as is known, or is to be tried again."""
        return self._database.is_time_to_try()

    def settlement_of(self, msg: MqMessage, kept: bytes) -> Settlement:
        """Make the attempt, given what Redis kept of earlier failures.

        Raises:
            DatabaseUnavailableError: it was none; see `bear`.
        """
        now_ms = _now_ms()
        failure = Failure.decode(kept, now_ms, msg.envelope.failure)
        settlement = self._without_handler(msg, failure, now_ms, has_failed=bool(kept))
        if settlement is None:
            return self._handled(msg, failure)
        settlement.context = msg.context
        return settlement

    def bear(self, msg: MqMessage, error: DatabaseUnavailableError) -> None:
        """Tell that the message waits for the database; raises the error if that has lasted too long."""
        emit("conquiet_mq_database_unavailable_total", 1, msg.topic, str(msg.partition), msg.group)
        place = (msg.partition, msg.topic, msg.group, msg.id, error)
        _log.warning(
            "partition %s of topic %r for group %r keeps entry %s until the database is back: %s",
            *place,
            extra=message_fields(msg, context=msg.context, consumer=self._rules.consumer),
        )
        if self._database.failed():
            raise error

    def _handled(self, msg: MqMessage, failure: Failure) -> Settlement:
        started = time.monotonic()
        self.running = Running(msg, started)
        try:
            settlement = self._handle(msg, failure)
        finally:
            self.running = None
            self._settling.count_handled()
        if self._database.is_on:
            self._database.ended()
        self._settling.observe(msg, started, _now_ms())
        return settlement

    def _without_handler(
        self, msg: MqMessage, failure: Failure, now_ms: int, *, has_failed: bool
    ) -> Settlement | None:
        if msg.envelope.for_group not in (None, msg.group):
            # A copy that was re-enqueued for another group.
            return Settlement("ack", msg.id, msg.delivery_count)
        if msg.delivery_count == 2 and not has_failed:
            # Whoever read it first may have died before it began; from the second time on begins are counted.
            return None
        return self._rules.for_poison(msg, failure, now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
