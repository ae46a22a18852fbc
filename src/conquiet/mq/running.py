"""What is done with one message of a partition: the handler, its transaction, and what it says."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine

from conquiet.arguments import check_non_negative_int
from conquiet.consume.handling import MessageHandling, check_handler, refuse_unfinished
from conquiet.db import DbSession, Inbox
from conquiet.errors import LeaseLostError
from conquiet.mq.envelope import MqMessage
from conquiet.mq.metrics import emitter
from conquiet.mq.outcomes import Ack, DeadLetter, Outcome, Retry
from conquiet.mq.settlement import Failure, Settlement, SettlementRules
from conquiet.queue import QueueMessage

_log = logging.getLogger(__name__)

#: `handler(msg)`, or with an engine `handler(msg, session)`.
MqHandler = Callable[..., Outcome | None]


class MessageRun:
    """Runs the handler of one worker's messages; one thread, one kept database connection."""

    def __init__(
        self,
        handler: MqHandler,
        rules: SettlementRules,
        *,
        engine: Engine | None,
        inbox: Inbox | None,
        check_lease: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._rules = rules
        self._check_lease = check_lease
        self._handling = None if engine is None else MessageHandling(self._in_transaction, engine, inbox)
        self._msg: MqMessage | None = None
        #: Looked up with the first message: a worker's messages are all of one partition.
        self._observe: tuple[Callable[[float], None], Callable[[float], None]] | None = None

    def __call__(self, msg: MqMessage, failure: Failure) -> Settlement:
        """Run the handler to its end and say how to settle the message.

        Raises:
            LeaseLostError: the lease went away while the handler ran; nothing was committed.
        """
        started = time.monotonic()
        try:
            outcome = self._run(msg)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a retry or a dead letter, with its traceback
            settlement = self._rules.for_error(msg, error, failure, _now_ms())
            place = (msg.id, msg.partition, msg.topic, msg.attempt, settlement.kind)
            _log.warning("entry %s of partition %s of %r failed at attempt %s: %s", *place, exc_info=error)
        else:
            settlement = self._rules.for_outcome(msg, outcome, failure, _now_ms())
        self._measure(msg, started)
        return settlement

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handling is not None:
            self._handling.release()

    def _run(self, msg: MqMessage) -> Outcome | None:
        if self._handling is None:
            return _outcome(self._handler(msg))
        self._msg = msg
        try:
            # A copy for this group stands for the entry that it was made from: what that one did is done.
            original = None if msg.envelope.for_group is None else msg.envelope.original_id
            self._handling.handle(replace(msg.source, id=original or msg.id))
        except _RolledBackError as undone:
            return undone.outcome
        return None

    def _in_transaction(self, _source: QueueMessage, session: DbSession) -> None:
        outcome = _outcome(self._handler(self._msg, session))
        if isinstance(outcome, Retry | DeadLetter):
            raise _RolledBackError(outcome)
        # The last moment at which a lost lease costs nothing: the commit follows.
        self._check_lease()

    def _measure(self, msg: MqMessage, started: float) -> None:
        if self._observe is None:
            labels = (msg.topic, str(msg.partition), msg.group)
            self._observe = (
                emitter("conquiet_mq_handle_seconds", *labels),
                emitter("conquiet_mq_end_to_end_seconds", *labels),
            )
        observe_handling, observe_end_to_end = self._observe
        observe_handling(time.monotonic() - started)
        if msg.envelope.timestamp_ms:
            observe_end_to_end(max(0, _now_ms() - msg.envelope.timestamp_ms) / 1000)


class _RolledBackError(Exception):
    """Leaves the transaction of a handler that asked for a retry or a dead letter."""

    def __init__(self, outcome: Retry | DeadLetter) -> None:
        self.outcome = outcome


def _outcome(result: Any) -> Outcome | None:
    refuse_unfinished(result)
    if isinstance(result, Retry) and result.delay_ms is not None:
        check_non_negative_int("delay_ms", result.delay_ms)
    return result if isinstance(result, Ack | Retry | DeadLetter) else None


def check_mq_handler(handler: MqHandler, *, has_engine: bool) -> None:
    """Refuse a handler that would fail, or do nothing, with every message."""
    check_handler(handler)
    if has_engine and not _takes(handler, 2):
        raise TypeError(f"with an engine, handler must be callable as handler(msg, session): {handler!r}")
    if not has_engine and not _takes(handler, 1):
        raise TypeError(f"without an engine, handler must be callable as handler(msg): {handler!r}")


def _takes(handler: MqHandler, count: int) -> bool:
    try:
        inspect.signature(handler).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # Some builtins do not tell.
        return True
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
