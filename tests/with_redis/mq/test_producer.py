"""The producer: order, once by a dedupe id, later by a delay, and nothing that cannot be read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet import QueueConfig, RedisStreamsQueue
from conquiet.errors import TopicError
from conquiet.mq import AsyncProducer, Message, Producer
from conquiet.queue import open_async_client
from tests.awaited import Awaited, EventLoop
from tests.eventually import eventually


@pytest.fixture(params=["plain", "asyncio"])
def producer(request, client, server_url):
    """Both kinds: what is said of one is true of the other."""
    if request.param == "plain":
        yield Producer(client)
        return
    with EventLoop() as loop:
        opened = open_async_client(server_url)
        yield Awaited(AsyncProducer(opened), loop)
        loop.run(opened.aclose())


def entries(topic, partition=0):
    found = topic.client.xrange(topic.keys.stream(partition))
    return [(entry_id.decode(), json.loads(fields[b"data"])) for entry_id, fields in found]


def count_of(topic):
    return sum(topic.client.xlen(topic.keys.stream(partition)) for partition in topic.partitions)


def test_a_message_is_one_entry_with_its_envelope(topic, producer):
    entry_id = producer.send(topic.name, {"n": 1}, key="anna", headers={"trace": "abc"})

    ((found_id, data),) = entries(topic)
    assert found_id == entry_id
    assert (data["payload"], data["key"], data["headers"]) == ({"n": 1}, "anna", {"trace": "abc"})
    assert (data["topic"], data["partitionId"], data["attempt"]) == (topic.name, 0, 0)


def test_the_ids_of_many_come_in_the_order_of_the_messages(wide, producer):
    ids = producer.send_many(wide.name, [{"n": n} for n in range(50)], batch_size=7)

    number_of = {
        entry_id: data["payload"]["n"]
        for partition in wide.partitions
        for entry_id, data in entries(wide, partition)
    }
    if len(number_of) == 50:  # ids of different partitions may be equal
        assert [number_of[entry_id] for entry_id in ids] == list(range(50))
    assert len(ids) == 50
    assert count_of(wide) == 50


def test_messages_of_one_key_keep_their_order_in_one_partition(wide, producer):
    keys = [f"k{n % 5}" for n in range(60)]
    producer.send_many(wide.name, [Message(payload={"n": n}, key=key) for n, key in enumerate(keys)])

    partitions_of: dict[Any, Any] = {}
    for partition in wide.partitions:
        numbers = [(data["key"], data["payload"]["n"]) for _, data in entries(wide, partition)]
        assert numbers == sorted(numbers, key=lambda pair: pair[1])
        for key, _ in numbers:
            partitions_of.setdefault(key, set()).add(partition)
    assert len(partitions_of) == 5
    assert all(len(found) == 1 for found in partitions_of.values())


def test_another_producer_sends_a_key_to_the_same_partition(wide, client):
    for _ in range(3):
        Producer(client).send(wide.name, {}, key="anna")

    assert sorted(len(entries(wide, partition)) for partition in wide.partitions) == [0, 0, 0, 3]


def test_the_same_dedupe_id_is_added_once_even_by_many_at_once(topic, producer):
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: producer.send(topic.name, {"n": n}, dedupe_id="order-1"), range(40)))

    ((entry_id, _),) = entries(topic)
    assert set(ids) == {entry_id}


def test_a_dedupe_id_is_forgotten_after_its_window(topic, client):
    producer = Producer(client, dedupe_window_ms=50)
    first = producer.send(topic.name, {"n": 1}, dedupe_id="order-1")

    second = eventually(
        lambda: (found := producer.send(topic.name, {"n": 2}, dedupe_id="order-1")) != first and found
    )

    assert [entry_id for entry_id, _ in entries(topic)] == [first, second]


def test_forgotten_dedupe_ids_leave_nothing_behind(topic, client):
    short, lasting = Producer(client, dedupe_window_ms=1), Producer(client, dedupe_window_ms=60_000)
    lasting.send(topic.name, {}, dedupe_id="kept")
    for n in range(20):
        short.send(topic.name, {}, dedupe_id=f"short-{n}")

    eventually(
        lambda: short.send(topic.name, {}, dedupe_id="next") and client.hlen(topic.keys.deduped(0)) <= 3
    )

    assert client.hexists(topic.keys.deduped(0), "kept")
    assert client.zcard(topic.keys.deduped_until(0)) == client.hlen(topic.keys.deduped(0))
    assert client.pttl(topic.keys.deduped(0)) > 50_000


def test_other_dedupe_ids_and_other_topics_are_other_messages(topic, wide, producer):
    producer.send(topic.name, {}, dedupe_id="a")
    producer.send(topic.name, {}, dedupe_id="b")
    producer.send(wide.name, {}, dedupe_id="a")

    assert (count_of(topic), count_of(wide)) == (2, 1)


def test_a_topic_that_is_made_anew_remembers_no_dedupe_id(topics, topic, producer):
    producer.send(topic.name, {"n": 1}, dedupe_id="order-1")
    topics.delete(topic.name)
    topics.create(topic.name)

    producer.send(topic.name, {"n": 1}, dedupe_id="order-1")

    assert count_of(topic) == 1


def test_a_delayed_message_waits(topic, producer, client):
    waiting = producer.send(topic.name, {"n": 1}, delay_ms=60_000)

    assert count_of(topic) == 0
    assert client.zrange(topic.keys.delayed(0), 0, -1) == [waiting.encode()]


def test_a_delay_with_a_dedupe_id_is_refused(topic, producer):
    with pytest.raises(ValueError, match="dedupe_id must not be given with a delay"):
        producer.send(topic.name, {}, delay_ms=5, dedupe_id="a")


def test_a_message_goes_to_the_partition_that_was_asked_for(wide, producer):
    producer.send(wide.name, {"n": 1}, key="anna", partition=2)

    assert [len(entries(wide, partition)) for partition in wide.partitions] == [0, 0, 1, 0]


@pytest.mark.parametrize("partition", [4, -1, 100])
def test_a_partition_that_is_not_there_is_refused(wide, producer, partition):
    with pytest.raises(TopicError, match=f"has no partition {partition}, only 0 to 3"):
        producer.send(wide.name, {}, partition=partition)
    assert count_of(wide) == 0


@pytest.mark.parametrize("partition", [True, 1.0, "1"])
def test_a_partition_that_is_no_number_is_refused(wide, producer, partition):
    with pytest.raises(TypeError, match="partition must be an int"):
        producer.send(wide.name, {}, partition=partition)
    streams = {wide.keys.stream(number).encode() for number in wide.partitions}
    assert set(wide.client.keys(f"stream:topic:{wide.name}:*")) == streams
    assert count_of(wide) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": {"n": float("nan")}},
        {"payload": {"n": {1}}},
        {"payload": [1, 2]},
        {"payload": "text"},
        {"payload": {}, "key": 5},
        {"payload": {}, "headers": {"a": 1}},
        {"payload": {}, "headers": {1: "a"}},
        {"payload": {}, "key": "\ud800"},
    ],
)
def test_if_one_message_is_refused_none_is_sent(wide, producer, wrong):
    good = Message(payload={"n": 1})

    with pytest.raises((TypeError, ValueError)):
        producer.send_many(wide.name, [good, Message(**wrong), good])
    with pytest.raises((TypeError, ValueError)):
        producer.send(wide.name, **wrong)
    assert count_of(wide) == 0


@pytest.mark.parametrize("delay", [-1, 1.5, True])
def test_a_delay_that_is_none_is_refused(topic, producer, delay):
    with pytest.raises((TypeError, ValueError), match="delay_ms"):
        producer.send(topic.name, {}, delay_ms=delay)


def test_after_refresh_a_topic_that_grew_is_used_in_full(topics, topic, producer):
    producer.send(topic.name, {})
    grown = topics.grow(topic.name, 3)

    producer.refresh()
    producer.send_many(topic.name, [{} for _ in range(6)])

    assert [len(entries(grown, partition)) for partition in (1, 2)] == [2, 2]


def test_a_partition_can_be_read_with_the_plain_queue(topic, producer, server_url):
    entry_id = producer.send(topic.name, {"n": 1})
    config = QueueConfig(topic.keys.stream(0), "plain", "worker-1", block_ms=50)

    with RedisStreamsQueue.from_url(server_url, config) as queue:
        (msg,) = queue.read(50)

    assert (msg.id, msg.payload["payload"]) == (entry_id, {"n": 1})


def test_a_plain_stream_that_is_there_is_sent_to_by_its_name(producer, stream, client):
    client.xadd(stream, {"data": "{}"})

    producer.send(stream, {"n": 1})

    assert client.xlen(stream) == 2


def test_a_name_that_is_neither_a_topic_nor_a_stream_is_refused(producer, stream, client):
    with pytest.raises(TopicError, match="neither a topic nor a stream"):
        producer.send(stream, {"n": 1})
    with pytest.raises(TopicError, match="neither a topic nor a stream"):
        producer.send_many(stream, [{"n": 1}])

    assert not client.exists(stream)


def test_a_producer_that_may_create_streams_sends_to_a_new_one(client, stream):
    Producer(client, create_streams=True).send(stream, {"n": 1})

    assert client.xlen(stream) == 1


def test_what_was_a_plain_stream_is_sent_to_as_the_topic_that_it_becomes(topics, name, client):
    producer = Producer(client, create_streams=True)
    producer.send(name, {"n": 0})
    client.xgroup_create(name, "billing", "$")  # has finished it

    topic = topics.create(name, 2)
    producer.send(name, {"n": 1})

    assert (count_of(topic), client.xlen(name)) == (1, 1)


def test_a_topic_that_grew_is_soon_used_in_full_without_being_told(topics, topic, producer):
    producer.send(topic.name, {})

    grown = topics.grow(topic.name, 3)

    eventually(lambda: producer.send(topic.name, {}) and entries(grown, 1) and entries(grown, 2))


def test_a_topic_that_grows_while_messages_are_collected_is_used_in_full(topics, topic, producer):
    def collected():
        topics.grow(topic.name, 2)
        yield {"n": 1}
        yield {"n": 2}

    producer.send_many(topic.name, collected())

    assert [len(entries(topic, partition)) for partition in (0, 1)] == [1, 1]


def test_a_topic_that_is_made_anew_with_fewer_partitions_is_soon_known_as_such(topics, wide, producer):
    producer.send(wide.name, {}, partition=3)
    topics.delete(wide.name)
    topics.create(wide.name, 2)

    def is_refused():
        try:
            return not producer.send(wide.name, {}, partition=3)
        except TopicError as error:
            return "has no partition 3, only 0 to 1" in str(error)

    eventually(is_refused)


def test_a_topic_that_was_deleted_is_soon_refused(topics, topic, producer):
    producer.send(topic.name, {})
    topics.delete(topic.name)

    def is_refused():
        try:
            return not producer.send(topic.name, {})
        except TopicError as error:
            return "neither a topic nor a stream" in str(error)

    eventually(is_refused)
    topic.client.delete(topic.keys.stream(0))
