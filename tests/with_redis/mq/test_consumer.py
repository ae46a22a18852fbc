"""What a consumer promises of each message."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import redis
from sqlalchemy import insert, select

from conquiet import DrainLimits, Inbox
from conquiet.mq import (
    ConsumerConfig,
    DeadLetter,
    DeadLetters,
    Envelope,
    PartitionConsumer,
    Producer,
    Retry,
    Topics,
    drain_partition,
)
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import (
    GROUP,
    Seen,
    dead_letters,
    metric,
    owners,
    pending,
    quick,
    wait_until_finished,
)


def written(engine):
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def write_effect(msg, session):
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.attempt)})


def test_each_message_is_handled_once_in_order_and_acked(topic, send, start):
    ids = send(250)
    seen = Seen()

    # Once, as long as the lease is held: one of a second may end on a busy machine.
    start(topic, seen, config=quick(lease_ttl_ms=60_000))

    wait_until_finished(topic)
    assert seen.ids == ids
    assert {msg.attempt for msg in seen} == {1}


def test_a_message_tells_what_was_sent(topic, producer, start):
    producer.send(topic.name, {"n": 1}, key="anna", headers={"trace": "abc"})
    seen = Seen()

    start(topic, seen)

    (msg,) = eventually(lambda: seen)
    assert (msg.payload, msg.key, msg.headers) == ({"n": 1}, "anna", {"trace": "abc"})
    assert (msg.topic, msg.group, msg.partition) == (topic.name, GROUP, 0)


def test_messages_that_come_later_are_handled_too(topic, send, start):
    seen = Seen()
    start(topic, seen)
    send(3)
    wait_until_finished(topic)

    send(3, start=3)

    eventually(lambda: seen.numbers() == list(range(6)))


def test_two_groups_each_get_every_message(topic, send, start):
    ids = send(20)
    billing, shipping = Seen(), Seen()

    start(topic, billing)
    start(topic, shipping, group="shipping")

    eventually(lambda: billing.ids == shipping.ids == ids)


def test_a_group_that_comes_later_starts_at_the_beginning(topic, send, start):
    ids = send(5)
    start(topic, Seen())
    wait_until_finished(topic)
    late = Seen()

    start(topic, late, group="late")

    eventually(lambda: late.ids == ids)


def test_each_partition_is_handled_in_its_own_order(wide, producer, start):
    ids = producer.send_many(wide.name, [{"n": n} for n in range(80)])
    seen = Seen()

    start(wide, seen)

    wait_until_finished(wide)
    assert sorted(seen.ids) == sorted(ids)
    for partition in wide.partitions:
        numbers = [msg.payload["n"] for msg in seen if msg.partition == partition]
        assert len(numbers) == 20
        assert numbers == sorted(numbers)


def test_a_plain_stream_is_a_topic_with_one_partition(topics, client, stream, start):
    client.xadd(stream, {"data": '{"n": 7}'})
    topic = topics.open(stream)
    seen = Seen()

    start(topic, seen)

    wait_until_finished(topic)
    assert seen.numbers() == [7]
    assert (seen[0].envelope.id, seen[0].key) == ("", None)


def test_with_an_engine_the_handler_has_a_session_of_its_own(topic, send, start, engine):
    ids = send(30)

    start(topic, write_effect, engine=engine)

    wait_until_finished(topic)
    assert written(engine) == ids


def test_with_an_inbox_a_redelivered_message_has_its_effect_once(topic, send, start, engine, client):
    ids = send(3)
    first = start(topic, write_effect, engine=engine, inbox=Inbox())
    wait_until_finished(topic)
    first.stop()
    client.xgroup_setid(topic.keys.stream(0), GROUP, "0-0")

    start(topic, write_effect, engine=engine, inbox=Inbox())

    wait_until_finished(topic)
    assert written(engine) == ids


def test_what_a_failed_handler_wrote_is_rolled_back(topic, send, start, engine):
    (entry_id,) = send(1)

    def fail_once(msg, session):
        write_effect(msg, session)
        if msg.attempt == 1:
            raise RuntimeError("not yet")

    start(topic, fail_once, engine=engine)

    wait_until_finished(topic)
    assert written(engine) == [entry_id]


async def coroutine(msg, session=None):
    """Does not run when called."""


def generator(msg):
    yield msg


class AsyncCallable:
    async def __call__(self, msg, session=None):
        """Does not run when called."""


@pytest.mark.parametrize("handler", [generator, "no function"])
def test_a_handler_that_would_not_run_is_refused_at_once(topic, handler):
    with pytest.raises(TypeError, match="handler must be"):
        PartitionConsumer(topic, GROUP, handler)


@pytest.mark.parametrize("handler", [coroutine, AsyncCallable()])
def test_an_async_handler_is_refused_with_an_engine_that_does_not_await(topic, engine, handler):
    with pytest.raises(TypeError, match="if engine is an AsyncEngine, as create_async_engine makes it"):
        PartitionConsumer(topic, GROUP, handler, engine)


def test_a_handler_that_returns_a_coroutine_has_not_handled_its_message(topic, send, start):
    send(1)

    start(topic, lambda msg: coroutine(msg))

    (letter,) = eventually(lambda: dead_letters(topic))
    assert letter["errorType"] == "TypeError"
    assert "has not run yet" in letter["errorMessage"]


def test_a_handler_that_needs_a_session_is_refused_without_an_engine(topic):
    with pytest.raises(TypeError, match="engine"):
        PartitionConsumer(topic, GROUP, write_effect)


def test_a_handler_that_cannot_take_a_session_is_refused_with_an_engine(topic, engine):
    with pytest.raises(TypeError, match="session"):
        PartitionConsumer(topic, GROUP, lambda msg: None, engine)


def test_an_inbox_without_an_engine_is_refused(topic):
    with pytest.raises(ValueError, match="inbox needs an engine"):
        PartitionConsumer(topic, GROUP, Seen(), inbox=Inbox())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConsumerConfig(batch_size=0),
        lambda: ConsumerConfig(block_ms=0),
        lambda: ConsumerConfig(max_parked=0),
        lambda: ConsumerConfig(ordering="Strict"),  # type: ignore[arg-type]
        lambda: ConsumerConfig(retry_mode="re-queue"),  # type: ignore[arg-type]
        lambda: ConsumerConfig(consumer_name=""),
        lambda: ConsumerConfig(lease_ttl_ms=0),
        lambda: ConsumerConfig(retry_mode="requeue", ordering="strict"),
    ],
)
def test_a_config_that_could_not_work_is_refused(make):
    with pytest.raises(ValueError, match=r"must|cannot"):
        make()


def test_a_paused_consumer_begins_no_message_and_keeps_its_partitions(topic, send, start):
    seen = Seen()
    running = start(topic, seen)
    eventually(lambda: owners(topic) == [running.name])
    running.consumer.pause()
    ids = send(5)
    lease = topic.keys.lease(GROUP, 0)
    until = int(topic.client.hget(lease, "expiresAtMs"))

    eventually(lambda: int(topic.client.hget(lease, "expiresAtMs")) > until + 500)

    assert len(seen) <= 1  # one read may have been under way
    running.consumer.resume()
    eventually(lambda: seen.ids == ids)


def test_what_was_read_before_a_pause_is_handled_at_once_after_it(topic, send, start, client):
    ids = send(5)
    seen = Seen()
    reads = []
    running: Any = None
    has_started = threading.Event()

    def pause_at_the_second(msg):
        seen(msg)
        reads.append(client.info("commandstats")["cmdstat_xreadgroup"]["calls"])
        if len(seen) == 2:
            assert has_started.wait(timeout=HANG_S)
            running.consumer.pause()

    running = start(topic, pause_at_the_second)
    has_started.set()
    eventually(lambda: running.consumer.is_paused)
    eventually(lambda: len(pending(topic)) == 3)

    running.consumer.resume()

    eventually(lambda: seen.ids == ids)
    # At once: before anything else is read.
    assert len(set(reads)) == 1


def test_stop_hands_back_what_was_not_begun_and_releases_the_lease(topic, send, start):
    ids = send(20)
    begun, go_on = threading.Event(), threading.Event()

    def wait(msg):
        begun.set()
        assert go_on.wait(timeout=HANG_S)

    running = start(topic, wait)
    assert begun.wait(timeout=HANG_S)
    running.consumer.stop()
    go_on.set()
    running.join()

    left = pending(topic)
    assert list(left) == ids[1:]
    assert {count for _, count in left.values()} == {0}
    assert owners(topic) == [None]
    seen = Seen()
    start(topic, seen)
    wait_until_finished(topic)
    assert seen.ids == ids[1:]
    assert {msg.attempt for msg in seen} == {1}


def test_a_consumer_that_was_stopped_does_not_run_again_and_says_so(topic, start):
    running = start(topic, Seen())
    eventually(lambda: owners(topic) == [running.name])
    running.stop()

    with pytest.raises(RuntimeError, match="make a new PartitionConsumer"):
        running.consumer.run()


def test_a_consumer_does_not_run_in_two_threads(topic, send, start):
    seen = Seen()
    running = start(topic, seen)
    eventually(lambda: owners(topic) == [running.name])

    with pytest.raises(RuntimeError, match="runs or has run"):
        running.consumer.run()

    ids = send(5)
    wait_until_finished(topic)
    assert seen.ids == ids


def test_a_consumer_that_is_stopped_before_it_runs_ends_at_once(topic, send):
    send(1)
    consumer = PartitionConsumer(topic, GROUP, Seen(), config=quick())
    consumer.stop()

    consumer.run()

    assert pending(topic) == {}


def test_a_handler_that_runs_too_long_is_logged_and_counted(topic, send, start, caplog):
    send(1)
    go_on = threading.Event()
    labels = {"topic": topic.name, "group": GROUP}

    start(topic, lambda msg: go_on.wait(timeout=HANG_S), config=quick(handler_timeout_s=0.1))

    eventually(lambda: metric("conquiet_mq_handlers_overdue", **labels) == 1)
    assert caplog.text.count("runs longer than 0.1 s") == 1
    go_on.set()
    eventually(lambda: metric("conquiet_mq_handlers_overdue", **labels) == 0)


def test_partitions_that_are_added_are_consumed_without_a_restart(topics, topic, producer, start):
    seen = Seen()
    start(topic, seen)
    eventually(lambda: owners(topic) != [None])

    grown = topics.grow(topic.name, 3)
    producer.refresh()
    ids = producer.send_many(topic.name, [{"n": n} for n in range(30)])

    wait_until_finished(grown)
    eventually(lambda: sorted(seen.ids) == sorted(ids))
    assert {msg.partition for msg in seen} == {0, 1, 2}


def test_scripts_that_the_server_forgot_are_sent_again(topic, send, start, client):
    seen = Seen()

    def forget(msg):
        client.script_flush()
        seen(msg)

    ids = send(20)
    start(topic, forget, config=quick(batch_size=3))

    wait_until_finished(topic)
    assert seen.ids == ids


def test_a_client_that_decodes_replies_is_as_good(server_url, topic, send, start):
    ids = send(5)
    seen = Seen()
    with redis.Redis.from_url(server_url, decode_responses=True) as decoding:
        running = start(Topics(decoding).open(topic.name), seen)
        wait_until_finished(topic)
        running.stop()

    assert seen.ids == ids
    assert running.error is None


def test_a_topic_that_is_deleted_ends_its_consumers_with_an_error(topics, topic, send, start, client):
    send(3)
    running = start(topic, Seen())
    wait_until_finished(topic)

    topics.delete(topic.name)

    running.join()
    assert "deleted" in str(running.error)
    assert not client.exists(topic.name)


def test_one_failing_handler_that_exits_ends_the_consumer_and_the_message_comes_back(topic, send, start):
    ids = send(3)

    def leave(msg):
        raise SystemExit("the handler ended the program")

    running = start(topic, leave)
    running.join()

    assert isinstance(running.error, SystemExit)
    seen = Seen()
    start(topic, seen)
    wait_until_finished(topic)
    assert seen.ids == ids


def test_a_payload_of_a_megabyte_reaches_every_group(topic, producer, start):
    payload = {"n": 0, "text": "x" * 1_000_000}
    producer.send(topic.name, payload)
    first, second = Seen(), Seen()

    start(topic, first)
    wait_until_finished(topic)
    start(topic, second, group="shipping")

    wait_until_finished(topic, "shipping")
    assert [msg.payload for seen in (first, second) for msg in seen] == [payload, payload]


LIKE_ENVELOPES = [
    {"schemaVersion": 1, "payload": {"n": 1}, "more": "x"},
    {
        "schemaVersion": 1,
        "id": "7",
        "key": "a",
        "payload": {"n": 1},
        "headers": {},
        "timestamp": 5,
        "attempt": 0,
    },
    {
        "schemaVersion": 1,
        "id": "7",
        "topic": "orders",
        "partitionId": 0,
        "payload": {},
        "key": ["of its own"],
    },
    {"schemaVersion": 2, "payload": {"n": 1}},
    json.loads(Envelope(topic="elsewhere", partition=0, payload={"n": 1}).encode()),
]


@pytest.mark.parametrize("payload", LIKE_ENVELOPES)
def test_a_plain_streams_payload_that_looks_like_an_envelope_is_handled_whole(client, stream, payload):
    client.xadd(stream, {"data": json.dumps(payload)})
    topic, seen = Topics(client).open(stream), Seen()
    entry_id = Producer(client).send(stream, {"sent": 1}, key="anna")

    def handler(msg):
        seen(msg)
        return Retry(0) if msg.attempt == 1 else DeadLetter("enough")

    config = quick(retry_mode="requeue")
    for _ in range(2):
        drain_partition(topic, 0, GROUP, handler, limits=DrainLimits(idle_ms=50), config=config)

    sent = [(payload, None), ({"sent": 1}, "anna")]
    assert [(msg.payload, msg.key) for msg in seen] == sent * 2
    assert [msg.original_id for msg in seen][1::2] == [entry_id] * 2
    assert [letter.payload for letter in DeadLetters(topic).list().letters] == [payload, {"sent": 1}]
