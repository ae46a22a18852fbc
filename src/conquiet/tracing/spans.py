"""What is done with one span; whatever the application's tracer raises, the message goes on."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, Span, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from conquiet.masking import mask
from conquiet.tracing.harmless import harmless

_MAX_STACKTRACE = 8_000

_W3C = TraceContextTextMapPropagator()


def headers_of(span: Span) -> dict[str, str]:
    """A span's context as headers; none where no provider is configured."""
    found: dict[str, str] = {}
    harmless(None, _W3C.inject, found, trace.set_span_in_context(span, Context()))
    return found


def trace_ids(context: Context | None = None) -> tuple[str, str] | None:
    """Trace and span of a context, or of the current one, in hexadecimal."""
    found = place_of(trace.get_current_span(context))
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


def record_error(span: Span, error: BaseException) -> None:
    """Record an error, with its cause and traceback, without passwords."""
    harmless(None, _record_error, span, error)


def _record_error(span: Span, error: BaseException) -> None:
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
def in_span(span: Span) -> Iterator[None]:
    """Make it the current one, and end it; what the body raises is recorded and leaves as it is."""
    token = harmless(None, _attached, span)
    try:
        yield
    except BaseException as error:
        record_error(span, error)
        raise
    finally:
        if token is not None:
            harmless(None, contexts.detach, token)
        harmless(None, span.end)


def _attached(span: Span) -> Token[Context] | None:
    return contexts.attach(trace.set_span_in_context(span))


def place_of(span: Span) -> SpanContext:
    """Its trace and its id."""
    return harmless(INVALID_SPAN_CONTEXT, span.get_span_context)


def extracted(carried: Mapping[str, Any]) -> Context | None:
    """The context that headers carry, if they do."""
    # Of the wire: what is no text is none of ours.
    texts = {name: carried[name] for name in _W3C.fields if isinstance(carried.get(name), str)}
    if "traceparent" not in texts:
        return None
    found = harmless(Context(), _W3C.extract, texts, Context())
    return found if place_of(trace.get_current_span(found)).is_valid else None


def links_to_current(origin: Context | None) -> list[Link]:
    """A link to the current span, where it is not in the trace of this context."""
    # The sender's context is the parent; the task that consumes is linked, or it is the parent itself.
    current = place_of(trace.get_current_span())
    if origin is None or not current.is_valid:
        return []
    is_same = place_of(trace.get_current_span(origin)).trace_id == current.trace_id
    return [] if is_same else [Link(current)]
