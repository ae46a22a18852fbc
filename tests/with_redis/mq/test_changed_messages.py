"""Whatever a handler makes of its message, what is retried, requeued or given up is as it was sent."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace

import pytest

from conquiet import DrainLimits, Inbox, QueueConfig, RedisStreamsQueue, drain
from conquiet.errors import DrainError, WriteRefusedError
from conquiet.mq import (
    DeadLetter,
    DeadLetters,
    Message,
    MqMessage,
    Retry,
    RetryPolicy,
    Topics,
    drain_partition,
)
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, quick, wait_until_finished

SENT = {"order": 1, "lines": [{"sku": "a", "count": 2}], "customer": {"name": "anna"}}
QUICK = DrainLimits(idle_ms=20)


def change(msg) -> None:
    """All that is within reach, nested too."""
    msg.payload["order"] = 99
    msg.payload["lines"][0]["count"] = 0
    msg.payload["customer"].clear()
    msg.payload["lines"].append("more")


def change_all(msg) -> None:
    change(msg)
    msg.headers["trace"] = "changed"
    msg.envelope.key = "changed"
    msg.envelope.max_retries = 50
    msg.envelope.payload = {"other": 1}


def fail(msg, *_session):
    raise ValueError(msg.id)


def refuse(msg, *_session):
    return DeadLetter("no")


def again(msg, *_session):
    return Retry(0)


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
@pytest.mark.parametrize("end", [fail, refuse, again])
def test_the_dead_letter_and_the_replay_of_a_changed_message_are_as_it_was_sent(topic, producer, end, mode):
    sent = Message(payload=SENT, key="anna", headers={"trace": "abc"}, max_retries=0)
    (entry_id,) = producer.send_many(topic.name, [sent])

    def handler(msg):
        change_all(msg)
        return end(msg)

    report = drain_partition(topic, 0, GROUP, handler, limits=QUICK, config=quick(retry_mode=mode))
    (letter,) = DeadLetters(topic).list().letters
    DeadLetters(topic).replay(letter.id)
    seen = Seen()
    drain_partition(topic, 0, GROUP, seen, limits=QUICK)

    assert report.dead_lettered == 1
    assert (letter.payload, letter.key, letter.headers) == (SENT, "anna", {"trace": "abc"})
    assert letter.original_id == entry_id
    assert [(msg.payload, msg.key, msg.headers) for msg in seen] == [(SENT, "anna", {"trace": "abc"})]


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
@pytest.mark.parametrize("end", [fail, again])
def test_every_attempt_gets_the_message_as_it_was_sent(topic, producer, start, end, mode):
    producer.send(topic.name, SENT, key="anna", headers={"trace": "abc"})
    seen = []

    def handler(msg):
        seen.append((msg.attempt, str(msg.payload), msg.key, dict(msg.headers)))
        change_all(msg)
        return end(msg) if msg.attempt < 3 else None

    policy = RetryPolicy(base_delay_ms=1, max_delay_ms=5)
    start(topic, handler, config=quick(retry_mode=mode, retry=policy))
    eventually(lambda: len(seen) == 3)
    wait_until_finished(topic)

    assert seen == [(attempt, str(SENT), "anna", {"trace": "abc"}) for attempt in (1, 2, 3)]


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
def test_what_the_database_refused_keeps_the_key_it_was_sent_with(topic, producer, engine, start, size):
    """Else others of its key would be handled before it."""
    producer.send_many(
        topic.name, [Message(payload={"n": n, "text": "x" * size}, key="anna") for n in range(3)]
    )
    seen = []

    def handler(msg, _session):
        seen.append(msg.payload["n"])
        if seen == [0]:
            msg.envelope.key = "changed"
            raise WriteRefusedError("disk full")

    start(topic, handler, engine=engine, config=quick(ordering="strict"))
    wait_until_finished(topic)

    assert seen == [0, 0, 1, 2]


@pytest.mark.parametrize("end", [fail, refuse])
def test_the_dead_letter_of_a_plain_stream_is_as_it_was_enqueued(client, stream, engine, end):
    def handler(msg, session):
        change(msg)
        return end(msg)

    with RedisStreamsQueue(client, QueueConfig(stream, GROUP, "worker-1", block_ms=50)) as queue:
        queue.enqueue(SENT)
        limits = DrainLimits(idle_ms=20, max_deliveries=1)
        if end is fail:
            with pytest.raises(DrainError):
                drain(queue, handler, engine, limits)
        drain(queue, handler, engine, limits)
    (letter,) = DeadLetters(Topics(client).open(stream)).list().letters

    assert letter.payload == SENT


@pytest.mark.parametrize("end", [fail, refuse, again])
def test_a_plain_stream_that_is_consumed_as_a_partition_keeps_what_was_enqueued(client, stream, end):
    client.xadd(stream, {"data": '{"order": 1, "lines": [{"count": 2}], "customer": {"name": "anna"}}'})
    sent = {"order": 1, "lines": [{"count": 2}], "customer": {"name": "anna"}}
    topic = Topics(client).open(stream)

    def handler(msg):
        change(msg)
        return end(msg)

    config = quick(retry=RetryPolicy(max_attempts=1))
    drain_partition(topic, 0, GROUP, handler, limits=QUICK, config=config)
    (letter,) = DeadLetters(topic).list().letters

    assert letter.payload == sent


@pytest.mark.parametrize("name", [one.name for one in fields(MqMessage)])
def test_no_field_of_a_message_can_be_set(topic, producer, name):
    """A handler that tries fails; its message is as it was sent, and the next one is handled."""
    sent, _ = producer.send_many(topic.name, [Message(payload=SENT, max_retries=0), {"next": 1}])
    seen = []

    def handler(msg):
        if msg.payload == SENT:
            setattr(msg, name, "changed")
        seen.append(msg.payload)

    report = drain_partition(topic, 0, GROUP, handler, limits=QUICK, config=quick())
    (letter,) = DeadLetters(topic).list().letters

    assert (report.handled, report.dead_lettered, seen) == (1, 1, [{"next": 1}])
    assert (letter.payload, letter.original_id) == (SENT, sent)
    assert "FrozenInstanceError" in letter.error_type


@pytest.mark.parametrize("end", [None, fail, again])
def test_what_a_handler_makes_of_the_envelope_ends_no_consumer(topic, producer, engine, end):
    producer.send_many(topic.name, [Message(payload=SENT, max_retries=0), {"next": 1}])
    inbox, seen = Inbox(), []
    inbox.create_table(engine)

    def handler(msg, _session):
        seen.append(msg.payload)
        for one in fields(msg.envelope):
            setattr(msg.envelope, one.name, object())
        return end(msg) if end is not None and len(seen) == 1 else None

    report = drain_partition(
        topic, 0, GROUP, handler, engine=engine, inbox=inbox, limits=QUICK, config=quick()
    )

    assert len(seen) == 2
    assert (report.handled, report.dead_lettered) == ((2, 0) if end is None else (1, 1))


def test_a_message_survives_a_copy_and_another_process(topic, producer):
    producer.send(topic.name, SENT, key="anna")
    seen = Seen()
    drain_partition(topic, 0, GROUP, seen, limits=QUICK)
    (msg,) = seen

    assert copy.deepcopy(msg) == msg == pickle.loads(pickle.dumps(msg))
    assert replace(msg, id="1-1").id == "1-1"


@pytest.mark.parametrize("data", ['{ "n": 1.50, "n": 1.50 }', '{"n":1e2,"t":"\\u00e9"}'])
def test_a_dead_letter_keeps_the_bytes_that_were_read(topic, client, stream, engine, data):
    """Also of a program that writes JSON in another way, in a topic and in a plain stream."""
    client.xadd(topic.keys.stream(0), {"data": data})
    client.xadd(stream, {"data": data})
    queue = RedisStreamsQueue(client, QueueConfig(stream, GROUP, "worker-1", block_ms=20))

    drain_partition(topic, 0, GROUP, refuse, limits=QUICK)
    drain(queue, refuse, engine, QUICK)

    for letters in (DeadLetters(topic), DeadLetters(Topics(client).open(stream))):
        (letter,) = letters.list().letters
        assert letter.raw_fields == ((b"data", data.encode()),)
        assert letter.payload == json.loads(data)


def test_what_can_be_made_again_is_not_kept_twice(topic, producer, client):
    producer.send(topic.name, SENT)
    drain_partition(topic, 0, GROUP, refuse, limits=QUICK)

    ((_, fields),) = client.xrange(topic.keys.dead_letters(0))
    assert "data" not in json.loads(fields[b"data"])
