"""How a handled message of a topic is settled: decided without Redis or a clock."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from conquiet.consume.dead_letter import (
    Cause,
    GivenUp,
    as_read,
    malformed_content,
    short_text,
    writable_content,
)
from conquiet.consume.outcome import Ack, DeadLetter, Outcome, Retry, Settlement, Skipped
from conquiet.errors import MalformedEntry
from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.retry_policy import RetryPolicy
from conquiet.payload import decode_payload, encode_payload
from conquiet.tracing import Where

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Failure:
    """What is remembered of a message's failed attempts until it is settled."""

    first_delivered_at_ms: int
    last_delay_ms: int = 0
    error_type: str = ""
    error_message: str = ""
    #: What a later version wrote, to be carried on.
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, msg: MqMessage, now_ms: int) -> Failure:
        """The failure that Redis kept, or that a copy carries, or a first one."""
        failure = cls(first_delivered_at_ms=now_ms)
        carried: Mapping[str, Any] = msg.envelope.failure or {}
        if msg.failure:
            try:
                carried = decode_payload(msg.failure)
            except ValueError as error:
                # It says how often and why before, and nothing of what to do: the message is not at fault.
                _log.warning("the failure record of entry %s cannot be read: %s", msg.id, error)
        for name, fact in carried.items():
            if name not in _FAILURE_NAMES:
                failure.unknown[name] = fact
            elif type(fact) is type(getattr(failure, name)):
                setattr(failure, name, fact)
        return failure


_FAILURE_NAMES = {one.name for one in fields(Failure)} - {"unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRules:
    """Turns outcomes and exceptions into settlements, by one policy."""

    policy: RetryPolicy
    mode: Literal["in_place", "requeue"]
    consumer: str

    def for_result(self, msg: MqMessage, result: Outcome | Exception, now_ms: int) -> Settlement:
        """The settlement of a handled message; what is retried or given up is as it was delivered."""
        if isinstance(result, Ack):
            return self.for_outcome(msg, result, now_ms)
        if isinstance(result, Exception):
            return self.for_error(msg.as_delivered(), result, now_ms)
        return self.for_outcome(msg.as_delivered(), result, now_ms)

    def for_outcome(self, msg: MqMessage, outcome: Outcome, now_ms: int) -> Settlement:
        """The settlement of what a handler returned."""
        if isinstance(outcome, Ack):
            return Settlement("ack", msg.id, msg.delivery_count, outcome="handled")
        match outcome:
            case Skipped():
                return Settlement("ack", msg.id, msg.delivery_count, outcome="skipped")
            case DeadLetter(reason):
                return self._dead_letter(msg, Cause(error_type="DeadLetter", message=reason), now_ms)
            case Retry(delay_ms, reason):
                cause = Cause(error_type="Retry", message=reason)
                return self._again(msg, cause, now_ms, delay_ms=delay_ms)

    def for_error(self, msg: MqMessage, error: Exception, now_ms: int) -> Settlement:
        """The settlement of what a handler raised."""
        cause = Cause.of(error)
        is_retried = self.policy.is_retried(error)
        settlement = self._again(msg, cause, now_ms) if is_retried else self._dead_letter(msg, cause, now_ms)
        # The traceback of the log line has it.
        settlement.error, settlement.reason = error, ""
        return settlement

    def without_handler(self, msg: MqMessage, now_ms: int) -> Settlement | None:
        """The settlement of a message that needs no handler, `None` for all others.

        A copy for another group is acked; what was delivered too often before its handler could answer
        becomes a dead letter.
        """
        if msg.envelope.for_group not in (None, msg.group):
            return Settlement("ack", msg.id, msg.delivery_count, outcome="skipped")
        attempts = msg.attempt - 1
        if attempts == 0 or not self.policy.is_exhausted(attempts, msg.envelope.max_retries):
            return None
        if msg.delivery_count == 2 and not msg.failure:
            # The consumer that read it first may have died before it began; from the second time on begins
            # are counted.
            return None
        failure = Failure.of(msg, now_ms)
        message = f"delivered {attempts} times and never finished; {failure.error_message}".rstrip("; ")
        cause = Cause(error_type=failure.error_type or "Poison", message=message)
        return self._dead_letter(msg, cause, now_ms, attempts=attempts)

    def for_malformed(self, entry: MalformedEntry, where: Where, now_ms: int) -> Settlement:
        """The dead letter of a malformed entry, with its raw bytes."""
        given_up = GivenUp(
            topic=where.destination,
            group=where.group or "",
            partition=where.partition or 0,
            original_id=entry.id,
            attempts=entry.delivery_count,
            consumer=self.consumer,
            now_ms=now_ms,
        )
        cause, content = malformed_content(entry)
        return Settlement(
            "dead_letter",
            entry.id,
            entry.delivery_count,
            given_up.letter(cause, content),
            outcome="dead_lettered",
            reason=f"{cause.error_type}: {cause.message}",
        )

    def _again(self, msg: MqMessage, cause: Cause, now_ms: int, *, delay_ms: int | None = None) -> Settlement:
        if self.policy.is_exhausted(msg.attempt, msg.envelope.max_retries):
            return self._dead_letter(msg, cause, now_ms)
        failure = Failure.of(msg, now_ms)
        delay = self.policy.delay_ms(msg.attempt, failure.last_delay_ms) if delay_ms is None else delay_ms
        kept = {
            **failure.unknown,
            "first_delivered_at_ms": failure.first_delivered_at_ms,
            "last_delay_ms": delay,
            "error_type": cause.error_type,
            "error_message": short_text(cause.message),
        }
        place = (msg.id, msg.delivery_count, delay)
        if self.mode == "in_place":
            return Settlement("retry", *place, json.dumps(kept), outcome="retried")
        origin = {"original_id": msg.original_id, "for_group": msg.group}
        try:
            copy = msg.envelope.copied(attempt=msg.attempt, **origin, failure=kept).encode()
        except (TypeError, ValueError):
            # Some JSON can be read but not written again, as a lone surrogate.
            return self._dead_letter(msg, cause, now_ms)
        return Settlement("requeue", *place, f"{msg.partition}:".encode() + copy, outcome="retried")

    def _dead_letter(
        self, msg: MqMessage, cause: Cause, now_ms: int, *, attempts: int | None = None
    ) -> Settlement:
        given_up = GivenUp(
            topic=msg.topic,
            group=msg.group,
            partition=msg.partition,
            key=msg.key,
            original_id=msg.original_id,
            attempts=msg.attempt if attempts is None else attempts,
            consumer=self.consumer,
            now_ms=now_ms,
            first_delivered_at_ms=Failure.of(msg, now_ms).first_delivered_at_ms,
        )
        return Settlement(
            "dead_letter",
            msg.id,
            msg.delivery_count,
            given_up.letter(cause, writable_content(partial(_content, msg), msg.data)),
            outcome="dead_lettered",
            reason=f"{cause.error_type}: {cause.message}",
        )


def _content(msg: MqMessage) -> dict[str, Any]:
    envelope = msg.envelope.encode()
    same = as_read(msg.data, envelope, encode_payload(msg.payload))
    return {"headers": dict(msg.headers), **same, "envelope": json.loads(envelope)}
