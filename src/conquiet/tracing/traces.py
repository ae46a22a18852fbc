"""Spans of messages, named and described as OpenTelemetry's messaging conventions say."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from conquiet.masking import mask
from conquiet.tracing.where import Where

MESSAGE_ID = "messaging.message.id"
_BATCH_COUNT = "messaging.batch.message_count"
_MAX_STACKTRACE = 8_000

_W3C = TraceContextTextMapPropagator()


class Sending:
    """A message, or a batch of them, on its way to the server."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        #: What each message carries.
        self.headers = [headers_of(span) for span in spans]

    def sent(self, entry_ids: Sequence[str]) -> None:
        """The server has told their ids; of what was gone before, none."""
        for span, entry_id in zip(self._spans, entry_ids, strict=False):
            span.set_attribute(MESSAGE_ID, entry_id)


class Processing:
    """A message in its handler."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.context = trace.set_span_in_context(span, Context())

    def failed(self, error: BaseException) -> None:
        """The handler has raised; its message stays pending or is tried again."""
        record_error(self._span, error)

    def refused(self, reason: str) -> None:
        """The handler has made it a dead letter."""
        self._span.set_status(Status(StatusCode.ERROR, mask(reason)))

    def ended(self, outcome: str) -> None:
        """What becomes of the message: handled or skipped; in the MQ ack, retry, requeue or dead."""
        self._span.set_attribute("conquiet.outcome", outcome)


class Traces:
    """Makes the spans of this process; nothing here installs a provider."""

    def __init__(self, provider: TracerProvider | None, *, payload_field: str | None = None) -> None:
        self.payload_field = payload_field
        self._tracer = trace.get_tracer("conquiet", version("conquiet"), provider)

    @contextmanager
    def sending(self, where: Where) -> Iterator[Sending]:
        """One message: the span is current, and its context travels with the message."""
        span = self._start("send", "send", where, SpanKind.PRODUCER)
        with _current(span):
            yield Sending([span])

    @contextmanager
    def sending_many(self, where: Where, count: int) -> Iterator[Sending]:
        """A batch: each message has a span of its own, and the call is linked to all of them."""
        created = [self._start("create", "create", where, SpanKind.PRODUCER) for _ in range(count)]
        links = [Link(span.get_span_context()) for span in created]
        span = self._start(
            "send", "send", where, SpanKind.CLIENT, links=links, attributes={_BATCH_COUNT: count}
        )
        try:
            with _current(span):
                yield Sending(created)
        except BaseException as error:
            for one in created:
                record_error(one, error)
            raise
        finally:
            for one in created:
                one.end()

    @contextmanager
    def sending_call(self, where: Where, count: int) -> Iterator[Sending]:
        """A batch of messages that have no place for a context: one span for all."""
        kind = SpanKind.PRODUCER
        with _current(self._start("send", "send", where, kind, attributes={_BATCH_COUNT: count})):
            yield Sending([])

    @contextmanager
    def replaying(self, where: Where, carried: Mapping[str, Any]) -> Iterator[Sending]:
        """A dead letter that becomes a message again, in the trace that it came from."""
        origin = _extracted(carried)
        span = self._start("replay", "send", where, SpanKind.PRODUCER, parent=origin, links=_ambient(origin))
        with _current(span):
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
        origin = _extracted(carried)
        span = self._start(
            "receive",
            "receive",
            where,
            SpanKind.CLIENT,
            parent=origin,
            links=_ambient(origin),
            attributes={MESSAGE_ID: message_id, _BATCH_COUNT: count},
            start_ns=times[0],
        )
        span.end(times[1])
        # Without a sender's context, the read is where the message's trace begins.
        return trace.set_span_in_context(span, Context()) if origin is None else origin

    @contextmanager
    def processing(self, where: Where, message_id: str, origin: Context | None) -> Iterator[Processing]:
        """A message in its handler, from the start of its transaction to the end of its commit."""
        span = self._start(
            "process",
            "process",
            where,
            SpanKind.CONSUMER,
            parent=origin,
            links=_ambient(origin),
            attributes={MESSAGE_ID: message_id},
        )
        with _current(span):
            yield Processing(span)

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
        span = self._start(
            operation,
            "settle",
            where,
            SpanKind.CLIENT,
            parent=context,
            attributes={MESSAGE_ID: message_id},
            start_ns=times[0],
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, mask(error)))
        span.end(times[1])

    @contextmanager
    def committing(self, database: str) -> Iterator[None]:
        """The commit of one transaction."""
        attributes = {"db.system.name": database, "db.operation.name": "COMMIT"}
        with _current(self._tracer.start_span("commit", kind=SpanKind.CLIENT, attributes=attributes)):
            yield

    @contextmanager
    def working(self, name: str, attributes: Mapping[str, Any], carrier: Mapping[str, str]) -> Iterator[None]:
        """The work of one task of an orchestrator, which may have a span for it."""
        if trace.get_current_span().get_span_context().is_valid:
            yield
            return
        with _current(self._tracer.start_span(name, _extracted(carrier), attributes=dict(attributes))):
            yield

    def carried_by(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The context in the payload of a plain stream's message, if it may have one."""
        found = None if self.payload_field is None else payload.get(self.payload_field)
        return found if isinstance(found, dict) else {}

    def with_context(self, payload: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The payload of a plain stream's message, with the context if it may have one."""
        if self.payload_field is None or not isinstance(payload, dict) or not headers:
            return payload
        return {**payload, self.payload_field: dict(headers)}

    def current_headers(self) -> dict[str, str]:
        """The current context as headers."""
        return headers_of(trace.get_current_span())

    def _start(
        self,
        operation: str,
        operation_type: str,
        where: Where,
        kind: SpanKind,
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        attributes: Mapping[str, Any] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        return self._tracer.start_span(
            f"{operation} {where.destination}",
            parent,
            kind,
            attributes={
                **where.attributes,
                "messaging.operation.name": operation,
                "messaging.operation.type": operation_type,
                **(attributes or {}),
            },
            links=links,
            start_time=start_ns or time.time_ns(),
        )


def headers_of(span: Span) -> dict[str, str]:
    """A span's context as headers; none where no provider is configured."""
    found: dict[str, str] = {}
    _W3C.inject(found, trace.set_span_in_context(span, Context()))
    return found


def trace_ids(context: Context | None = None) -> tuple[str, str] | None:
    """Trace and span of a context, or of the current one, in hexadecimal."""
    found = trace.get_current_span(context).get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


def record_error(span: Span, error: BaseException) -> None:
    """Record an error, with its cause and traceback, without passwords."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        said = mask(str(error))
    except Exception:  # noqa: BLE001 -- the user's; the traceback tells the rest
        said = "<its str() failed>"
    shown = mask("".join(traceback.format_exception(error)))[-_MAX_STACKTRACE:]
    event = {"exception.type": name, "exception.message": said, "exception.stacktrace": shown}
    span.add_event("exception", event)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, said))


@contextmanager
def _current(span: Span) -> Iterator[None]:
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield
    except BaseException as error:
        record_error(span, error)
        raise
    finally:
        contexts.detach(token)
        span.end()


def _extracted(carried: Mapping[str, Any]) -> Context | None:
    # Of the wire: what is no text is none of ours.
    texts = {name: carried[name] for name in _W3C.fields if isinstance(carried.get(name), str)}
    if "traceparent" not in texts:
        return None
    found = _W3C.extract(texts, Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _ambient(origin: Context | None) -> list[Link]:
    # The sender's context is the parent; the task that consumes is linked, or it is the parent itself.
    current = trace.get_current_span().get_span_context()
    if origin is None or not current.is_valid:
        return []
    is_same = trace.get_current_span(origin).get_span_context().trace_id == current.trace_id
    return [] if is_same else [Link(current)]
