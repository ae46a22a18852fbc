"""What is done with one span; an error of the application's tracer is logged, and never fails a message."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, Span, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from conquiet.masking import mask

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_MAX_STACKTRACE = 8_000

_W3C = TraceContextTextMapPropagator()

#: What has been logged: a broken span processor fails with every span.
_logged: set[tuple[str, type[Exception]]] = set()


def harmless(otherwise: _T, action: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a sampler, span processor or propagator by way of the API; `otherwise` if that raises."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 -- the application's; logged once of each kind
        kind = (getattr(action, "__qualname__", repr(type(action))), type(error))
        if kind not in _logged:
            _logged.add(kind)
            # An error of the application's log must not fail the message either.
            with suppress(Exception):
                _log.warning(
                    "the tracer failed in %s; messages are handled without it", kind[0], exc_info=error
                )
        return otherwise


def headers_of(span: Span) -> dict[str, str]:
    """A span's context as headers; none where no provider is configured."""
    headers: dict[str, str] = {}
    harmless(None, _W3C.inject, headers, trace.set_span_in_context(span, Context()))
    return headers


def trace_ids(context: Context | None = None) -> tuple[str, str] | None:
    """Trace and span of a context, or of the current one, in hexadecimal."""
    ids = ids_of(trace.get_current_span(context))
    return (f"{ids.trace_id:032x}", f"{ids.span_id:016x}") if ids.is_valid else None


def record_error(span: Span, error: BaseException) -> None:
    """Record an error, with its cause and traceback, without passwords."""
    harmless(None, _record_error, span, error)


def _record_error(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = mask(str(error))
    except Exception:  # noqa: BLE001 -- the user's; the traceback has the rest
        text = "<its str() failed>"
    shown = mask("".join(traceback.format_exception(error)))[-_MAX_STACKTRACE:]
    event = {"exception.type": name, "exception.message": text, "exception.stacktrace": shown}
    span.add_event("exception", event)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, text))


@contextmanager
def in_span(span: Span, *, ends: bool = True) -> Iterator[None]:
    """Make it the current one, and end it; what the body raises is recorded and raised unchanged."""
    token = harmless(None, lambda: contexts.attach(trace.set_span_in_context(span)))
    try:
        yield
    except BaseException as error:
        if ends:
            record_error(span, error)
        raise
    finally:
        if token is not None:
            harmless(None, contexts.detach, token)
        if ends:
            harmless(None, span.end)


def ids_of(span: Span) -> SpanContext:
    """Its trace and its id."""
    return harmless(INVALID_SPAN_CONTEXT, span.get_span_context)


def extracted(carried: Mapping[str, Any]) -> Context | None:
    """The context that headers carry, if they do."""
    # They come from the stream: values that are not text are not a context.
    texts = {name: carried[name] for name in _W3C.fields if isinstance(carried.get(name), str)}
    if "traceparent" not in texts:
        return None
    context = harmless(Context(), _W3C.extract, texts, Context())
    return context if ids_of(trace.get_current_span(context)).is_valid else None


def links_to_current(origin: Context | None) -> list[Link]:
    """A link to the current span, where it is not in the trace of this context."""
    # The sender's context is the parent; the task that consumes is linked, or it is the parent itself.
    current = ids_of(trace.get_current_span())
    if origin is None or not current.is_valid:
        return []
    is_same = ids_of(trace.get_current_span(origin)).trace_id == current.trace_id
    return [] if is_same else [Link(current)]
