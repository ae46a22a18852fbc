"""A process that drains one partition with tracing on, and prints each span as a line of JSON."""

from __future__ import annotations

import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from sqlalchemy import create_engine

from conquiet import DrainLimits, open_client
from conquiet.mq import Topics, drain_partition


def main(url: str, topic: str, group: str, database_url: str) -> None:
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # As an application does it; `CONQUIET_TRACING=1` does the rest.
    trace.set_tracer_provider(provider)
    engine = create_engine(database_url)
    with open_client(url) as client:
        opened = Topics(client).open(topic)
        drain_partition(
            opened, 0, group, lambda msg, session: None, engine, DrainLimits(max_messages=1_000, idle_ms=50)
        )
    engine.dispose()
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
