"""Traces of plain streams: one message from its read to its ack, and nothing at all while they are off."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import insert

from conquiet import DrainLimits, Outbox, OutboxRelay, QueueConsumer, StreamWriter, drain, open_client
from conquiet.tracing import disable, enable, headers, working
from tests.conftest import effects
from tests.spans import id_of, parent_of, trace_of, traced, traceparent_of


@pytest.fixture(scope="session")
def server_url(valkey_url):
    """One kind of server: spans are made on our side."""
    return valkey_url


def note(msg, session):
    session.execute(insert(effects).values(entry_id=msg.id, note="handled"))


def data_in(client, stream):
    return [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]


def test_a_member_that_the_sender_has_put_there_itself_stays(queue, engine):
    sent = [{"n": 1, "_trace": "the sender's own"}, {"n": 2, "_trace": None}, {"n": 3, "_trace": {"a": 1}}]
    seen = []

    with traced(payload_field="_trace"):
        queue.enqueue(sent[0])
        queue.enqueue_many(sent[1:])
        drain(
            queue,
            lambda msg, _session: seen.append(msg.payload),
            engine,
            DrainLimits(max_messages=10, idle_ms=20),
        )

    assert seen == sent


def test_a_drained_message_is_one_trace_from_read_to_ack(queue, engine, spans, stream):
    entry_id = queue.enqueue({"n": 1})
    send = spans.one("send")
    spans.clear()

    drain(queue, note, engine, DrainLimits(max_messages=10, idle_ms=20))

    receive, process, commit, ack = (spans.one(name) for name in ("receive", "process", "commit", "ack"))
    assert send.name == f"send {stream}"
    assert (send.kind, receive.kind, process.kind, ack.kind) == (
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    )
    assert len({trace_of(span) for span in (receive, process, commit, ack)}) == 1
    assert parent_of(receive) is None
    assert parent_of(process) == id_of(receive)
    assert [parent_of(commit), parent_of(ack)] == [id_of(process)] * 2
    assert receive.start_time <= receive.end_time <= process.start_time
    assert process.end_time <= ack.start_time <= ack.end_time
    assert dict(process.attributes) == {
        "messaging.system": "redis",
        "messaging.destination.name": stream,
        "messaging.consumer.group.name": "billing",
        "messaging.client.id": "worker-1",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": entry_id,
        "conquiet.outcome": "handled",
    }
    assert ack.attributes["messaging.operation.type"] == "settle"
    assert commit.attributes["db.system.name"] == "sqlite"
    assert send.attributes["messaging.message.id"] == entry_id


def test_a_plain_entry_carries_no_context_unless_a_member_is_named_for_it(queue, client, stream, spans):
    queue.enqueue({"n": 1})
    queue.enqueue_many([{"n": 2}])
    with traced(payload_field="_trace") as named:
        queue.enqueue({"n": 3})
        queue.enqueue_many([{"n": 4}, {"n": 5}])

    plain, carrying = data_in(client, stream)[:2], data_in(client, stream)[2:]

    assert plain == [{"n": 1}, {"n": 2}]
    (single, batch), created = named.all("send"), named.all("create")
    assert carrying == [
        {"n": n, "_trace": {"traceparent": traceparent_of(span)}}
        for n, span in zip((3, 4, 5), (single, *created), strict=True)
    ]
    assert [link.context.span_id for link in batch.links] == [id_of(span) for span in created]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2


def test_the_named_member_makes_handling_a_part_of_the_senders_trace(queue, engine):
    with traced(payload_field="_trace") as spans:
        queue.enqueue({"n": 1})
        drain(queue, note, engine, DrainLimits(max_messages=10, idle_ms=20))

    send = spans.one("send")
    assert {parent_of(spans.one(name)) for name in ("receive", "process")} == {id_of(send)}
    assert {trace_of(span) for span in spans} == {trace_of(send)}


def test_what_a_handler_puts_into_the_outbox_carries_the_handlers_context(queue, engine, client, stream):
    outbox = Outbox()
    outbox.create_table(engine)
    queue.enqueue({"n": 1})
    with traced(payload_field="_trace") as spans:
        drain(
            queue,
            lambda _msg, session: outbox.enqueue(session, f"{stream}:next", {"n": 2}),
            engine,
            DrainLimits(max_messages=1),
        )

    OutboxRelay(engine, client).relay()

    carried = {"traceparent": traceparent_of(spans.one("process"))}
    assert data_in(client, f"{stream}:next") == [{"n": 2, "_trace": carried}]


def test_a_handlers_own_spans_are_children_of_its_message(queue, engine, spans):
    queue.enqueue({"n": 1})
    tracer = spans.provider.get_tracer("application")

    def handle(msg, session):
        with tracer.start_as_current_span("charge card"):
            note(msg, session)

    drain(queue, handle, engine, DrainLimits(max_messages=10, idle_ms=20))

    assert parent_of(spans.one("charge")) == id_of(spans.one("process"))
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_failing_message_is_an_error_without_its_passwords(queue, engine, spans):
    queue.enqueue({"n": 1})

    def fail(_msg, _session):
        raise ConnectionError("no answer from postgresql://shop:s3cr3t-word@db/shop")

    with pytest.raises(ConnectionError):
        drain(queue, fail, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="raise"))

    process = spans.one("process")
    (event,) = process.events
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == event.attributes["exception.type"] == "ConnectionError"
    assert "shop:***@db" in event.attributes["exception.message"]
    assert (
        "fail(" in event.attributes["exception.stacktrace"]
        or "in fail" in event.attributes["exception.stacktrace"]
    )
    assert "s3cr3t-word" not in process.to_json()
    assert spans.all("commit") == spans.all("ack") == []


def test_a_consumer_that_runs_acks_in_a_call_of_its_own_and_goes_on(make_queue, engine, spans):
    queue = make_queue(block_ms=500)
    queue.enqueue_many([{"n": n} for n in range(3)])
    consumer, seen = QueueConsumer(queue), []

    def handle(msg, session):
        seen.append(msg.id)
        if len(seen) == 3:
            consumer.stop()

    consumer.run(handler=handle, engine=engine)

    processed = spans.all("process")
    assert [span.attributes["messaging.message.id"] for span in processed] == seen
    assert [parent_of(ack) for ack in spans.all("ack")] == [id_of(span) for span in processed]
    # Had the ack shared its call with the next read, that would have begun before the ack ended.
    pairs = zip(spans.all("ack"), spans.all("receive")[1:], strict=False)
    assert all(ack.end_time <= receive.start_time for ack, receive in pairs)
    assert queue.backlog_stats().pending == 0


def test_a_task_that_drains_is_the_parent_of_what_has_no_sender_and_linked_to_the_rest(queue, engine):
    with traced(payload_field="_trace") as spans:
        queue.enqueue({"n": 1})
        StreamWriter(queue.client, queue.config.stream_key)._enqueue({"n": 2})
        with working("task drain"):
            drain(queue, note, engine, DrainLimits(max_messages=10, idle_ms=20))

    send, task = spans.one("send"), spans.one("task")
    linked, child = spans.all("process")
    assert trace_of(linked) == trace_of(send)
    assert [link.context.span_id for link in linked.links] == [id_of(task)]
    assert (trace_of(child), child.links) == (trace_of(task), ())


def test_off_means_no_span_and_no_byte_more(queue, engine, client, stream, spans):
    disable()

    queue.enqueue({"n": 1})
    with working("task"):
        drain(queue, note, engine, DrainLimits(max_messages=10, idle_ms=20))

    assert list(spans) == []
    assert headers() == {}
    assert data_in(client, stream) == [{"n": 1}]


def test_on_without_a_provider_adds_no_header(queue, client, stream):
    with traced(payload_field="_trace"):
        enable(trace.NoOpTracerProvider(), payload_field="_trace")
        queue.enqueue({"n": 1})

    assert data_in(client, stream) == [{"n": 1}]


@pytest.mark.parametrize(
    ("setting", "printed"), [("", "False False"), ("1", "True True"), ("perhaps", "False False")]
)
def test_the_environment_switches_it_on_and_nothing_is_loaded_before(setting, printed):
    code = (
        "import sys; import conquiet; conquiet.StreamWriter; conquiet.drain; "
        "from conquiet.tracing import is_enabled; "
        "print(is_enabled(), 'conquiet.tracing.traces' in sys.modules)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"CONQUIET_TRACING": setting},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == printed
    assert ("must be one of off, on" in ran.stderr) == (setting == "perhaps")


def test_without_the_package_the_environment_is_told_and_code_is_refused():
    code = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from conquiet.tracing import enable, is_enabled; print(is_enabled())\n"
        "try:\n    enable()\nexcept Exception as error:\n    print(error)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"CONQUIET_TRACING": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines() == ["False", "tracing needs OpenTelemetry: pip install 'conquiet[otel]'"]
    assert "nothing is traced" in ran.stderr


def test_the_sender_of_a_refused_message_tells_the_error(valkey_url, stream, spans):
    with open_client(valkey_url) as client:
        client.set(stream, "no stream")

        with pytest.raises(Exception, match="WRONGTYPE"):
            StreamWriter(client, stream).enqueue({"n": 1})

        client.delete(stream)
    assert spans.one("send").status.status_code is StatusCode.ERROR
