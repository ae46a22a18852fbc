"""The spans that this process has ended, by name, as the real SDK exports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conquiet import tracing


class Spans:
    """What was exported."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(self._exporter.get_finished_spans())

    def all(self, operation: str) -> list[ReadableSpan]:
        """Those whose name begins with this word, in the order in which they ended."""
        return [span for span in self if span.name.split(" ")[0] == operation]

    def one(self, operation: str) -> ReadableSpan:
        """The only one."""
        (found,) = self.all(operation)
        return found

    def clear(self) -> None:
        self._exporter.clear()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return span.context.span_id


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def traceparent_of(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@contextmanager
def traced(**options: str) -> Iterator[Spans]:
    """Tracing is on, with a provider of its own."""
    found = Spans(TracerProvider())
    tracing.enable(found.provider, **options)
    try:
        yield found
    finally:
        tracing.disable()
        found.provider.shutdown()
