"""Traces of topics: the context travels in the headers, over processes, retries, dead letters and replays."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from conquiet import DrainLimits
from conquiet.mq import DeadLetter, DeadLetters, LeaseLostError, Message, RetryPolicy, drain_partition
from conquiet.tracing import disable, enable
from tests.eventually import HANG_S
from tests.spans import id_of, parent_of, trace_of, traceparent_of
from tests.with_redis.mq.consuming import GROUP, Seen, quick, wait_until_finished


@pytest.fixture(scope="session")
def server_url(valkey_url):
    """One kind of server: spans are made on our side."""
    return valkey_url


def headers_in(topic):
    return [json.loads(fields[b"data"])["headers"] for _, fields in topic.client.xrange(topic.keys.stream(0))]


def drained(topic, handler, engine=None, **changes):
    return drain_partition(
        topic, 0, GROUP, handler, engine, DrainLimits(max_messages=100, idle_ms=50), config=quick(**changes)
    )


def test_a_message_is_one_trace_from_the_senders_call_to_its_ack(topic, producer, start, engine, spans):
    tracer = spans.provider.get_tracer("application")
    with tracer.start_as_current_span("checkout"):
        entry_id = producer.send(topic.name, {"n": 1}, headers={"tenant": "a"})
    seen = Seen()

    consumer = start(topic, seen, engine=engine)
    wait_until_finished(topic)
    # A span ends after what it tells of: the server may know of the ack before that.
    consumer.stop()

    names = ("checkout", "send", "receive", "process", "commit", "ack")
    checkout, send, receive, process, commit, ack = (spans.one(name) for name in names)
    assert headers_in(topic) == [{"tenant": "a", "traceparent": traceparent_of(send)}]
    assert {trace_of(span) for span in spans} == {trace_of(checkout)}
    assert parent_of(send) == id_of(checkout)
    assert parent_of(receive) == parent_of(process) == id_of(send)
    assert parent_of(commit) == parent_of(ack) == id_of(process)
    times = [span.start_time for span in (send, receive, process, commit, ack)]
    assert times == sorted(times)
    assert process.attributes["messaging.destination.partition.id"] == "0"
    assert process.attributes["messaging.consumer.group.name"] == GROUP
    assert {span.attributes["messaging.message.id"] for span in (send, receive, process, ack)} == {entry_id}
    assert seen[0].headers["traceparent"] == traceparent_of(send)


def test_the_trace_goes_on_in_another_process(topic, producer, server_url, spans, tmp_path):
    producer.send(topic.name, {"n": 1})
    send = spans.one("send")
    command = [sys.executable, "-m", "tests.traced_worker", server_url, topic.name, GROUP]

    ran = subprocess.run(
        [*command, f"sqlite:///{tmp_path / 'worker.db'}"],
        env=os.environ | {"CONQUIET_TRACING": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )

    there = {span["name"].split(" ")[0]: span for span in map(json.loads, ran.stdout.splitlines())}
    ids = {name: span["context"]["span_id"] for name, span in there.items()}
    assert {span["context"]["trace_id"] for span in there.values()} == {f"0x{trace_of(send)}"}
    assert {name: span["parent_id"] for name, span in there.items()} == {
        "receive": f"0x{id_of(send):016x}",
        "process": f"0x{id_of(send):016x}",
        "commit": ids["process"],
        "ack": ids["process"],
    }


def test_each_message_of_a_batch_has_its_own_context_and_the_call_links_to_all(topic, producer, spans):
    ids = producer.send_many(topic.name, [{"n": 0}, Message(payload={"n": 1}, dedupe_id="one")])

    created, batch = spans.all("create"), spans.one("send")
    assert [headers["traceparent"] for headers in headers_in(topic)] == list(map(traceparent_of, created))
    assert [span.attributes["messaging.message.id"] for span in created] == ids
    assert [link.context.span_id for link in batch.links] == list(map(id_of, created))
    assert (batch.kind, {span.kind for span in created}) == (SpanKind.CLIENT, {SpanKind.PRODUCER})


def test_attempts_the_dead_letter_and_its_replay_stay_in_the_senders_trace(topic, producer, spans):
    producer.send(topic.name, {"n": 1})
    send = spans.one("send")

    def fail(_msg):
        raise ConnectionError("redis://shop:s3cr3t-word@host is away")

    for _ in range(2):
        drained(topic, fail, retry=RetryPolicy(base_delay_ms=1, max_delay_ms=1, max_attempts=2))
    letter = DeadLetters(topic).list().letters[0]
    DeadLetters(topic).replay(letter.id)
    drained(topic, lambda _msg: None)

    assert {trace_of(span) for span in spans} == {trace_of(send)}
    outcomes = [span.attributes["conquiet.outcome"] for span in spans.all("process")]
    assert outcomes == ["retried", "dead_lettered", "handled"]
    assert [span.status.status_code for span in spans.all("process")] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert {parent_of(span) for span in (*spans.all("process"), spans.one("replay"))} == {id_of(send)}
    settled = [spans.one(name) for name in ("retry", "dead_letter", "ack")]
    assert [parent_of(span) for span in settled] == list(map(id_of, spans.all("process")))
    assert letter.headers == {"traceparent": traceparent_of(send)}
    assert "s3cr3t-word" not in "".join(span.to_json() for span in spans)


def test_a_copy_that_is_enqueued_again_keeps_the_context(topic, producer, spans):
    producer.send(topic.name, {"n": 1})
    failures = iter([ValueError("once")])

    def fail_once(_msg):
        for error in failures:
            raise error

    for _ in range(2):
        drained(topic, fail_once, retry_mode="requeue", retry=RetryPolicy(base_delay_ms=1, max_delay_ms=1))

    first, second = spans.all("process")
    assert parent_of(first) == parent_of(second) == id_of(spans.one("send"))
    assert first.attributes["messaging.message.id"] != second.attributes["messaging.message.id"]


def test_a_handlers_word_for_a_dead_letter_is_an_error_and_a_replay_gives_a_context_to_what_had_none(
    topic, producer, spans
):
    disable()
    producer.send(topic.name, {"n": 1})

    enable(spans.provider)

    drained(topic, lambda _msg: DeadLetter("no such customer"))
    DeadLetters(topic).replay_all()
    drained(topic, lambda _msg: None)

    refused, handled = spans.all("process")
    assert refused.status.description == "no such customer"
    assert parent_of(handled) == id_of(spans.one("replay"))


def test_a_handler_that_sends_on_makes_a_longer_trace(topic, producer, spans):
    first = producer.send(topic.name, {"hop": 1})

    def pass_on(msg):
        if msg.payload["hop"] == 1:
            # With the headers of the message at hand, as handlers like to do it.
            producer.send(topic.name, {"hop": 2}, headers=msg.headers)

    drained(topic, pass_on)

    processed = {span.attributes["messaging.message.id"]: span for span in spans.all("process")}
    second_send = spans.all("send")[1]
    assert parent_of(second_send) == id_of(processed.pop(first))
    assert [parent_of(span) for span in processed.values()] == [id_of(second_send)]


def test_a_lost_lease_is_the_error_of_the_message_it_hit(topic, producer, engine, spans):
    producer.send(topic.name, {"n": 1})

    def lose(_msg, _session):
        topic.client.delete(topic.keys.lease(GROUP, 0))
        raise LeaseLostError(topic=topic.name, group=GROUP, partition=0, owner="me", epoch=1)

    with pytest.raises(LeaseLostError):
        drained(topic, lose, engine)

    process = spans.one("process")
    assert process.attributes["error.type"].endswith("LeaseLostError")
    assert spans.all("ack") == spans.all("commit") == []


def test_off_means_no_header_and_no_span(topic, producer, spans):
    disable()

    producer.send(topic.name, {"n": 1})
    producer.send_many(topic.name, [{"n": 2}], batch_size=1)
    drained(topic, lambda _msg: None)

    assert headers_in(topic) == [{}, {}]
    assert list(spans) == []


def test_a_malformed_context_is_as_good_as_none(topic, producer, spans):
    disable()
    producer.send(topic.name, {"n": 1}, headers={"traceparent": "00-what-is-this-01", "tracestate": "x"})

    enable(spans.provider)

    drained(topic, lambda _msg: None)

    assert parent_of(spans.one("process")) == id_of(spans.one("receive"))


def test_a_record_factory_with_names_of_ours_makes_no_dead_letter(topic, producer):
    def make(*args, **kwargs):
        record = logging.LogRecord(*args, **kwargs)
        record.trace_id = record.topic = "the application's"
        return record

    def fail(_msg):
        raise ValueError("no")

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(make)
    producer.send(topic.name, {"n": 1})

    report = drained(topic, fail, retry=RetryPolicy(base_delay_ms=60_000, backoff="fixed"))

    logging.setLogRecordFactory(before)
    assert (report.retried, report.dead_lettered) == (1, 0)


def test_the_log_line_of_a_failure_names_its_message_and_its_trace(topic, producer, spans, caplog):
    entry_id = producer.send(topic.name, {"n": 1})

    def fail(_msg):
        raise ValueError("no")

    with caplog.at_level(logging.WARNING):
        drained(topic, fail, consumer_name="worker-7", retry=RetryPolicy(base_delay_ms=60_000))

    (record,) = [record for record in caplog.records if "failed at attempt" in record.getMessage()]
    process = spans.one("process")
    known = {name: fact for name, fact in record.conquiet.items() if fact is not None}
    assert known == {
        "topic": topic.name,
        "stream": topic.keys.stream(0),
        "partition": 0,
        "group": GROUP,
        "message_id": entry_id,
        "consumer": "worker-7",
        "trace_id": trace_of(process),
        "span_id": f"{id_of(process):016x}",
    }
