"""A tracer of the application that raises: messages are sent, handled, committed and settled all the same."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
from sqlalchemy import text

from conquiet import DrainLimits, tracing
from conquiet.mq import RetryPolicy, drain_partition
from conquiet.tracing import spans
from tests.with_redis.mq.consuming import GROUP, quick


@pytest.fixture(scope="session")
def server_url(valkey_url):
    """One kind of server: spans are made on our side."""
    return valkey_url


class BrokenProcessor(SpanProcessor):
    def __init__(self, moment: str) -> None:
        self._moment = moment

    def on_start(self, span, parent_context=None):
        if self._moment == "start":
            raise RuntimeError("the span processor is broken")

    def on_end(self, span):
        if self._moment == "end":
            raise RuntimeError("the span processor is broken")


class BrokenSampler(Sampler):
    def should_sample(self, *_args, **_kwargs):
        raise RuntimeError("the sampler is broken")

    def get_description(self):
        return "broken"


#: The drain ends before the second attempt.
LATER = RetryPolicy(base_delay_ms=60_000, backoff="fixed")


def drained(topic, handler, engine):
    return drain_partition(
        topic, 0, GROUP, handler, engine, DrainLimits(max_messages=100, idle_ms=50), config=quick(retry=LATER)
    )


@pytest.fixture(params=["start", "end", "sampler"])
def broken_tracer(request, monkeypatch):
    """Tracing is on, with a provider that raises."""
    monkeypatch.setattr(spans, "_logged", set())
    is_sampler = request.param == "sampler"
    provider = TracerProvider(sampler=BrokenSampler()) if is_sampler else TracerProvider()
    if not is_sampler:
        provider.add_span_processor(BrokenProcessor(request.param))
    tracing.enable(provider)
    yield
    tracing.disable()


@pytest.mark.usefixtures("broken_tracer")
def test_a_tracer_that_raises_decides_about_no_message(topic, producer, engine, caplog):
    before = contexts.get_current()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE handled (n INTEGER)"))

    def insert(msg, session):
        session.execute(text("INSERT INTO handled (n) VALUES (:n)"), msg.payload)

    with caplog.at_level(logging.WARNING):
        producer.send(topic.name, {"n": 1})
        producer.send_many(topic.name, [{"n": 2}, {"n": 3}])
        report = drained(topic, insert, engine)

    assert (report.handled, report.retried, report.dead_lettered) == (3, 0, 0)
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT n FROM handled ORDER BY n")).all() == [1, 2, 3]
    (told,) = [record for record in caplog.records if record.name == "conquiet.tracing.spans"]
    assert "is broken" in str(told.exc_info[1])
    assert contexts.get_current() == before


@pytest.mark.usefixtures("broken_tracer")
def test_what_a_handler_raises_is_what_counts_under_a_broken_tracer(topic, producer, engine, caplog):
    producer.send(topic.name, {"n": 1})

    def fail(_msg, _session):
        raise ValueError("the handler's own")

    with caplog.at_level(logging.WARNING):
        report = drained(topic, fail, engine)

    assert (report.retried, report.dead_lettered) == (1, 0)
    (line,) = [record for record in caplog.records if "failed at attempt" in record.getMessage()]
    assert str(line.exc_info[1]) == "the handler's own"
