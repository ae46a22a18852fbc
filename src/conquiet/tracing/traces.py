"""Spans of messages, named and described as OpenTelemetry's messaging conventions say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, Status, StatusCode, TracerProvider

from conquiet.masking import mask
from conquiet.tracing.spans import (
    extracted,
    harmless,
    headers_of,
    ids_of,
    in_span,
    links_to_current,
    record_error,
)
from conquiet.tracing.where import Where

MESSAGE_ID = "messaging.message.id"
_BATCH_COUNT = "messaging.batch.message_count"

#: By operation; the others (ack, retry …) settle.
_OPERATION_TYPES = {
    "create": "create",
    "send": "send",
    "replay": "send",
    "receive": "receive",
    "process": "process",
}


class Sending:
    """A message, or a batch of them, on its way to the server."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        #: What each message carries.
        self.headers = [headers_of(span) for span in spans]

    def sent(self, entry_ids: Sequence[str]) -> None:
        for span, entry_id in zip(self._spans, entry_ids, strict=False):
            harmless(None, span.set_attribute, MESSAGE_ID, entry_id)


class Processing:
    """A message in its handler."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.context = trace.set_span_in_context(span, Context())
        #: When the handler ended; what became of the message may be decided later, in another thread.
        self.ended_ns: int | None = None

    def failed(self, error: BaseException) -> None:
        """Record that the handler raised; its message stays pending or is tried again."""
        record_error(self._span, error)

    def refused(self, reason: str) -> None:
        """Record that the handler made it a dead letter."""
        harmless(None, self._span.set_status, Status(StatusCode.ERROR, mask(reason)))

    def ended(self, outcome: str | None = None) -> None:
        """Record the outcome, `None` if it is not decided, and end the span when the handler ended."""
        if outcome is not None:
            harmless(None, self._span.set_attribute, "conquiet.outcome", outcome)
        harmless(None, self._span.end, self.ended_ns)


class Traces:
    """Makes the spans of this process; the provider is the application's."""

    def __init__(self, provider: TracerProvider | None, *, payload_field: str | None = None) -> None:
        self.payload_field = payload_field
        self._tracer = trace.get_tracer("conquiet", version("conquiet"), provider)

    @contextmanager
    def sending(self, where: Where) -> Iterator[Sending]:
        """One message: the span is current, and its context travels with the message."""
        span = self._start("send", where, SpanKind.PRODUCER)
        with in_span(span):
            yield Sending([span])

    @contextmanager
    def sending_many(self, where: Where, count: int) -> Iterator[Sending]:
        """A batch: each message has a span of its own, and the call is linked to all of them."""
        created = [self._start("create", where, SpanKind.PRODUCER) for _ in range(count)]
        links = [Link(ids_of(span)) for span in created]
        call = self._start("send", where, SpanKind.CLIENT, {_BATCH_COUNT: count}, links=links)
        try:
            with in_span(call):
                yield Sending(created)
        except BaseException as error:
            for span in created:
                record_error(span, error)
            raise
        finally:
            for span in created:
                harmless(None, span.end)

    @contextmanager
    def sending_call(self, where: Where, count: int) -> Iterator[None]:
        """A batch of messages that cannot carry a context: one span for all."""
        with in_span(self._start("send", where, SpanKind.PRODUCER, {_BATCH_COUNT: count})):
            yield

    @contextmanager
    def replaying(self, where: Where, carried: Mapping[str, Any]) -> Iterator[Sending]:
        """A dead letter that becomes a message again, in the trace that it came from."""
        origin = extracted(carried)
        links = links_to_current(origin)
        span = self._start("replay", where, SpanKind.PRODUCER, parent=origin, links=links)
        with in_span(span):
            yield Sending([span])

    def received(
        self,
        where: Where,
        message_id: str,
        carried: Mapping[str, Any],
        *,
        times: tuple[int, int],
        count: int = 1,
    ) -> Context:
        """A message was read between two moments (ns); returns the context that its handling belongs to."""
        origin = extracted(carried)
        attributes = {MESSAGE_ID: message_id, _BATCH_COUNT: count}
        links = links_to_current(origin)
        span = self._start(
            "receive", where, SpanKind.CLIENT, attributes, parent=origin, links=links, start_time=times[0]
        )
        harmless(None, span.end, times[1])
        # Without a sender's context, the message's trace begins with the read.
        return trace.set_span_in_context(span, Context()) if origin is None else origin

    @contextmanager
    def processing(self, where: Where, message_id: str, origin: Context | None) -> Iterator[Processing]:
        """A message in its handler, from the start of its transaction to the end of its commit.

        Unless the block raises, `ended` is to be called after it.
        """
        links, attributes = links_to_current(origin), {MESSAGE_ID: message_id}
        span = self._start("process", where, SpanKind.CONSUMER, attributes, parent=origin, links=links)
        processing = Processing(span)
        with in_span(span, ends=False):
            try:
                yield processing
            except BaseException as error:
                processing.failed(error)
                processing.ended()
                raise
            processing.ended_ns = time.time_ns()

    def settled(
        self,
        operation: str,
        where: Where,
        message_id: str,
        context: Context | None,
        *,
        times: tuple[int, int],
        error: str | None = None,
    ) -> None:
        """A message was acked, scheduled again or dead-lettered between two moments (ns)."""
        attributes = {MESSAGE_ID: message_id}
        span = self._start(operation, where, SpanKind.CLIENT, attributes, parent=context, start_time=times[0])
        if error is not None:
            harmless(None, span.set_status, Status(StatusCode.ERROR, mask(error)))
        harmless(None, span.end, times[1])

    @contextmanager
    def committing(self, database: str) -> Iterator[None]:
        """The commit of one transaction."""
        attributes = {"db.system.name": database, "db.operation.name": "COMMIT"}
        with in_span(self._started("commit", kind=SpanKind.CLIENT, attributes=attributes)):
            yield

    @contextmanager
    def working(self, name: str, attributes: Mapping[str, Any], carrier: Mapping[str, str]) -> Iterator[None]:
        """The work of one task of an orchestrator, unless it has a span of its own."""
        if ids_of(trace.get_current_span()).is_valid:
            yield
            return
        with in_span(self._started(name, extracted(carrier), attributes=dict(attributes))):
            yield

    def carried_by(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The context in the payload of a plain stream's message, if it may have one."""
        context = None if self.payload_field is None else payload.get(self.payload_field)
        return context if isinstance(context, dict) else {}

    def with_context(self, payload: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The payload of a plain stream's message, with the context if it may have one.

        What the sender has put there itself stays.
        """
        if self.payload_field is None or not isinstance(payload, dict) or not headers:
            return payload
        if self.payload_field in payload:
            return payload
        return {**payload, self.payload_field: dict(headers)}

    def current_headers(self) -> dict[str, str]:
        return headers_of(trace.get_current_span())

    def _start(
        self,
        operation: str,
        where: Where,
        kind: SpanKind,
        attributes: Mapping[str, Any] | None = None,
        *,
        parent: Context | None = None,
        **options: Any,
    ) -> Span:
        described = {
            **where.attributes,
            "messaging.operation.name": operation,
            "messaging.operation.type": _OPERATION_TYPES.get(operation, "settle"),
            **(attributes or {}),
        }
        options = {"start_time": time.time_ns(), **options}
        name = f"{operation} {where.destination}"
        return self._started(name, parent, kind=kind, attributes=described, **options)

    def _started(self, name: str, parent: Context | None = None, **options: Any) -> Span:
        # If a span cannot be started, its parent stands in for it: the trace goes on.
        instead = NonRecordingSpan(ids_of(trace.get_current_span(parent)))
        return harmless(instead, self._tracer.start_span, name, parent, **options)
