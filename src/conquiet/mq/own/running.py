"""What is done with one message of a partition: the handler, its transaction, and what it says."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Engine

from conquiet.arguments import check_non_negative_int
from conquiet.consume.handling import MessageHandling, check_handler, refuse_unfinished
from conquiet.consume.handling import Outcome as Handled
from conquiet.db import DbSession, Inbox, is_connection_lost
from conquiet.errors import DatabaseUnavailableError, LeaseLostError
from conquiet.logs import MessageLog, message_fields, naming_messages_of
from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.outcomes import Ack, DeadLetter, Outcome, Retry
from conquiet.mq.own.settlement import Failure, Settlement, SettlementRules
from conquiet.queue import QueueMessage
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from conquiet.tracing.traces import Processing, Traces

_log = MessageLog(logging.getLogger(__name__))

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
        self.consumer = rules.consumer
        #: The message in the handler.
        self.handled: MqMessage | None = None
        #: Messages that the inbox had.
        self.skipped = 0
        #: The last message during which the database went away, and how often it did.
        self._losses: dict[str, int] = {}

    def __call__(self, msg: MqMessage, failure: Failure) -> Settlement:
        """Run the handler to its end and say how to settle the message.

        Raises:
            LeaseLostError: the lease went away while the handler ran; nothing was committed.
            DatabaseUnavailableError: the database cannot be reached: the message is not settled, but handled again.
        """
        self.handled = msg
        try:
            traces = active_traces()
            return self._settled(msg, failure) if traces is None else self._traced(traces, msg, failure)
        finally:
            self.handled = None

    def _traced(self, traces: Traces, msg: MqMessage, failure: Failure) -> Settlement:
        place = {"destination": msg.topic, "group": msg.group, "partition": msg.partition}
        where = Where(**place, consumer=self._rules.consumer)  # type: ignore[arg-type]
        with traces.processing(where, msg.id, msg.context) as processing:
            settlement = self._settled(msg, failure, processing)
            processing.ended(settlement.kind)
        settlement.context = processing.context
        return settlement

    def _settled(self, msg: MqMessage, failure: Failure, processing: Processing | None = None) -> Settlement:
        try:
            outcome = self._run(msg)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's; it becomes a retry or a dead letter, with its traceback
            self._refuse_outage(msg, error)
            settlement = self._rules.for_error(msg, error, failure, _now_ms())
            if processing is not None:
                processing.failed(error)
            place = (msg.id, msg.partition, msg.topic, msg.attempt, settlement.kind)
            told = message_fields(msg, consumer=self._rules.consumer)
            _log.warning(
                "entry %s of partition %s of %r failed at attempt %s: %s", *place, exc_info=error, extra=told
            )
        else:
            settlement = self._rules.for_outcome(msg, outcome, failure, _now_ms())
            if processing is not None and isinstance(outcome, DeadLetter):
                processing.refused(outcome.reason)
        return settlement

    def release(self) -> None:
        """Give back the database connection that is kept from message to message."""
        if self._handling is not None:
            self._handling.release()

    def __enter__(self) -> Self:
        self._naming = naming_messages_of(self)
        self._naming.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._naming.__exit__(kind, error, trace)
        self.release()

    def _run(self, msg: MqMessage) -> Outcome | None:
        if self._handling is None:
            return _outcome(self._handler(msg))
        try:
            # A copy for this group stands for the entry that it was made from: what that one did is done.
            original = None if msg.envelope.for_group is None else msg.envelope.original_id
            place = (msg.stream, msg.group, original or msg.id)
            outcome = self._handling.handle(QueueMessage(*place, msg.payload, msg.delivery_count))
            self.skipped += outcome is Handled.SKIPPED
        except _RolledBackError as undone:
            return undone.outcome
        return None

    def _refuse_outage(self, msg: MqMessage, error: Exception) -> None:
        if isinstance(error, DatabaseUnavailableError):
            raise error
        if (
            self._handling is None
            or not is_connection_lost(error)
            or not self._handling.is_database_unavailable()
        ):
            return
        # One that takes the database down each time is not spared for ever.
        self._losses = {msg.id: self._losses.get(msg.id, 0) + 1}
        if self._losses[msg.id] <= self._rules.policy.max_attempts:
            raise DatabaseUnavailableError(
                f"the database went away while {msg.id} was handled: {error}"
            ) from error

    def _in_transaction(self, _source: QueueMessage, session: DbSession) -> None:
        outcome = _outcome(self._handler(self.handled, session))
        if isinstance(outcome, Retry | DeadLetter):
            raise _RolledBackError(outcome)
        # The last moment at which a lost lease costs nothing: the commit follows.
        self._check_lease()


class _RolledBackError(Exception):
    """Leaves the transaction of a handler that asked for a retry or a dead letter."""

    def __init__(self, outcome: Retry | DeadLetter) -> None:
        self.outcome = outcome


def _outcome(result: Any) -> Outcome | None:
    refuse_unfinished(result)
    if isinstance(result, type) and issubclass(result, Ack | Retry | DeadLetter):
        raise TypeError(f"handler returned the class {result.__name__}; return an instance of it")
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
