"""How a handled message is settled: decided without Redis or a clock."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from conquiet.errors import MalformedEntry
from conquiet.masking import mask
from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.outcomes import Ack, DeadLetter, Outcome, Retry
from conquiet.mq.own.retry import RetryPolicy

SettlementKind = Literal["ack", "retry", "requeue", "dead", "hand_back", "begin"]

_MAX_TRACEBACK = 8_000
_MAX_TEXT = 1_000


# Not frozen, as one of each is made for every message: that would double what it costs.
@dataclass(slots=True)
class Failure:
    """What is remembered of a message's failed attempts until it is settled."""

    first_delivered_at_ms: int
    last_delay_ms: int = 0
    error_type: str = ""
    error_message: str = ""

    @classmethod
    def decode(cls, text: bytes, now_ms: int, carried: Mapping[str, Any] | None = None) -> Failure:
        """The failure that Redis kept, or that a copy carries, or a first one."""
        if text:
            return cls(**json.loads(text))
        first = cls(first_delivered_at_ms=now_ms)
        if carried is None:
            return first
        # Of the wire: what is not of its kind is left out.
        facts = {name: carried.get(name) for name in asdict(first)}
        known = {name: fact for name, fact in facts.items() if type(fact) is type(getattr(first, name))}
        return replace(first, **known)  # type: ignore[arg-type]  # each is of its field's type


@dataclass(slots=True)
class Settlement:
    """One message and what becomes of it; the two arguments are those of settle_and_read.lua."""

    kind: SettlementKind
    entry_id: str
    delivery_count: int
    first: str | int | bytes = ""
    second: str | bytes = ""
    #: The OpenTelemetry context of the handling, if it was traced.
    context: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRules:
    """Turns outcomes and exceptions into settlements, by one policy."""

    policy: RetryPolicy
    mode: Literal["in_place", "requeue"]
    consumer: str

    def for_outcome(
        self, msg: MqMessage, outcome: Outcome | None, failure: Failure, now_ms: int
    ) -> Settlement:
        """The settlement of what a handler returned."""
        match outcome:
            case None | Ack():
                return Settlement("ack", msg.id, msg.delivery_count)
            case DeadLetter(reason):
                return self._dead(msg, failure, now_ms, error_type="DeadLetter", message=reason)
            case Retry(delay_ms, reason):
                return self._again(msg, failure, now_ms, "Retry", reason, delay_ms=delay_ms)

    def for_error(self, msg: MqMessage, error: Exception, failure: Failure, now_ms: int) -> Settlement:
        """The settlement of what a handler raised."""
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        shown = mask("".join(traceback.format_exception(error)))[-_MAX_TRACEBACK:]
        if not self.policy.is_retried(error):
            return self._dead(msg, failure, now_ms, error_type=kind, message=_said(error), trace=shown)
        return self._again(msg, failure, now_ms, kind, _said(error), trace=shown)

    def for_poison(self, msg: MqMessage, failure: Failure, now_ms: int) -> Settlement | None:
        """The dead letter of a message that was delivered too often before its handler could say anything."""
        attempts = msg.attempt - 1
        if attempts == 0 or not self.policy.is_exhausted(attempts, msg.envelope.max_retries):
            return None
        message = f"delivered {attempts} times and never finished; {failure.error_message}".rstrip("; ")
        kind = failure.error_type or "Poison"
        return self._dead(msg, failure, now_ms, error_type=kind, message=message, attempts=attempts)

    def for_malformed(
        self, entry: MalformedEntry, *, topic: str, group: str, partition: int, now_ms: int
    ) -> Settlement:
        """The dead letter of an entry that is no message, with its raw bytes."""
        letter = {
            "topic": topic,
            "group": group,
            "partition": partition,
            "originalMessageId": entry.id,
            "attempts": entry.delivery_count,
            "deadLetteredAt": now_ms,
            "lastConsumer": self.consumer,
            "errorType": "Malformed",
            "errorMessage": entry.reason[:_MAX_TEXT],
            "fieldsBase64": entry.fields_base64(),
        }
        return Settlement("dead", entry.id, entry.delivery_count, json.dumps(letter))

    def _again(
        self,
        msg: MqMessage,
        failure: Failure,
        now_ms: int,
        error_type: str,
        message: str,
        *,
        trace: str = "",
        delay_ms: int | None = None,
    ) -> Settlement:
        if self.policy.is_exhausted(msg.attempt, msg.envelope.max_retries):
            return self._dead(msg, failure, now_ms, error_type=error_type, message=message, trace=trace)
        delay = self.policy.delay_ms(msg.attempt, failure.last_delay_ms) if delay_ms is None else delay_ms
        kept = {
            "first_delivered_at_ms": failure.first_delivered_at_ms,
            "last_delay_ms": delay,
            "error_type": error_type,
            "error_message": _text(message),
        }
        if self.mode == "requeue":
            item = _item(msg, kept)
            if item is None:
                return self._dead(msg, failure, now_ms, error_type=error_type, message=message, trace=trace)
            return Settlement("requeue", msg.id, msg.delivery_count, delay, item)
        return Settlement("retry", msg.id, msg.delivery_count, delay, json.dumps(kept))

    def _dead(
        self,
        msg: MqMessage,
        failure: Failure,
        now_ms: int,
        *,
        error_type: str,
        message: str,
        trace: str = "",
        attempts: int | None = None,
    ) -> Settlement:
        letter: dict[str, Any] = {
            "topic": msg.topic,
            "group": msg.group,
            "partition": msg.partition,
            "key": msg.key,
            "originalMessageId": _original_id(msg),
            "attempts": msg.attempt if attempts is None else attempts,
            "firstDeliveredAt": failure.first_delivered_at_ms,
            "lastDeliveredAt": now_ms,
            "deadLetteredAt": now_ms,
            "lastConsumer": self.consumer,
            "errorType": error_type,
            "errorMessage": _text(message),
            "traceback": _writable(trace),
            **_content(msg),
        }
        return Settlement("dead", msg.id, msg.delivery_count, json.dumps(letter))


def _content(msg: MqMessage) -> dict[str, Any]:
    try:
        return {"headers": dict(msg.headers), "envelope": json.loads(msg.envelope.encode())}
    except (TypeError, ValueError):
        # Some JSON can be read but not written again, as a lone surrogate: the bytes as they came.
        fields = [[base64.b64encode(part).decode() for part in (b"data", msg.data)]]
        return {"headers": {}, "fieldsBase64": fields}


def _item(msg: MqMessage, failure: Mapping[str, Any]) -> bytes | None:
    copy = msg.envelope.copied(
        attempt=msg.attempt, original_id=_original_id(msg), for_group=msg.group, failure=failure
    )
    try:
        return f"{msg.partition}:".encode() + copy.encode()
    except (TypeError, ValueError):
        return None


def _original_id(msg: MqMessage) -> str:
    # A message that was replayed to all groups is new to each of them: some have handled its original.
    original_id = None if msg.envelope.for_group is None else msg.envelope.original_id
    return original_id or msg.id


def _text(message: str) -> str:
    return _writable(message[:_MAX_TEXT])


def _writable(text: str) -> str:
    # A file name that is no UTF-8 brings lone surrogates, which the reader of the letter would refuse.
    return text.encode(errors="backslashreplace").decode()


def _said(error: Exception) -> str:
    try:
        return mask(str(error))
    except Exception:  # noqa: BLE001 -- the user's; the traceback tells the rest
        return "<its str() failed>"
