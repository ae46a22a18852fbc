"""Many messages that are each added once, by their dedupe ids."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from conquiet import QueueError
from conquiet.mq import Message, Producer
from tests.eventually import eventually
from tests.with_redis.mq.consuming import metric


def once(*numbers, key="anna"):
    return [Message(payload={"n": n}, key=key, dedupe_id=f"order-{n}") for n in numbers]


def entries(topic, partition=0):
    found = topic.client.xrange(topic.keys.stream(partition))
    return [(entry_id.decode(), json.loads(fields[b"data"])["payload"]["n"]) for entry_id, fields in found]


def numbers(topic, partition=0):
    return [number for _, number in entries(topic, partition)]


def test_a_second_message_with_the_same_id_is_not_added_and_the_firsts_id_is_returned(topic, producer):
    first = producer.send_many(topic.name, once(1, 2, 3))
    second = producer.send_many(topic.name, once(3, 4, 1))

    assert numbers(topic) == [1, 2, 3, 4]
    assert second == [first[2], entries(topic)[3][0], first[0]]


def test_an_id_that_comes_twice_in_one_call_is_added_once(topic, producer):
    ids = producer.send_many(topic.name, once(1, 2, 1))

    assert entries(topic) == [(ids[0], 1), (ids[1], 2)]
    assert ids[2] == ids[0]


def test_what_was_sent_alone_and_what_was_sent_with_others_know_each_others_ids(topic, producer):
    alone = producer.send(topic.name, {"n": 1}, dedupe_id="order-1")
    together = producer.send_many(topic.name, once(1, 2))

    assert together[0] == alone
    assert producer.send(topic.name, {"n": 2}, dedupe_id="order-2") == together[1]
    assert numbers(topic) == [1, 2]


@pytest.mark.parametrize("batch_size", [1, 7, 1_000, 100_000])
def test_messages_with_and_without_an_id_keep_their_order_in_every_partition(wide, producer, batch_size):
    messages = [
        Message(payload={"n": n}, partition=n % 4, dedupe_id=None if n % 3 else f"order-{n}")
        for n in range(2_400)
    ]

    ids = producer.send_many(wide.name, messages, batch_size=batch_size)
    again = producer.send_many(wide.name, messages[:300], batch_size=batch_size)

    for partition in wide.partitions:
        found = entries(wide, partition)
        assert found[:600] == list(zip(ids[partition::4], range(partition, 2_400, 4), strict=True))
        assert [number for _, number in found[600:]] == [n for n in range(partition, 300, 4) if n % 3]
    assert [again[n] for n in range(0, 300, 3)] == [ids[n] for n in range(0, 300, 3)]


def test_of_many_that_send_the_same_at_once_each_message_is_added_once(topic, producer):
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: producer.send_many(topic.name, once(*range(50))), range(16)))

    assert numbers(topic) == list(range(50))
    assert all(ids == [entry_id for entry_id, _ in entries(topic)] for ids in replies)


def test_after_the_window_a_message_is_added_again(topic, client):
    producer = Producer(client, dedupe_window_ms=50)
    first = producer.send_many(topic.name, once(1, 2))

    eventually(lambda: not set(producer.send_many(topic.name, once(1, 2))) & set(first))

    assert numbers(topic) == [1, 2, 1, 2]
    assert client.pttl(topic.keys.deduped(0)) <= 50


def test_forgotten_ids_leave_nothing_behind(topic, client):
    short, lasting = Producer(client, dedupe_window_ms=1), Producer(client, dedupe_window_ms=60_000)
    lasting.send_many(topic.name, once("kept"))
    short.send_many(topic.name, once(*range(500)))

    eventually(
        lambda: short.send_many(topic.name, once("next", "last")) and client.hlen(topic.keys.deduped(0)) <= 5
    )

    assert client.hexists(topic.keys.deduped(0), "order-kept")
    assert client.zcard(topic.keys.deduped_until(0)) == client.hlen(topic.keys.deduped(0))


@pytest.mark.parametrize("wrong", ["", 5, "\ud800"])
def test_an_id_that_cannot_be_one_is_refused_and_nothing_is_sent(topic, producer, wrong):
    with pytest.raises((TypeError, ValueError), match="dedupe_id"):
        producer.send_many(topic.name, [*once(1), Message(payload={}, dedupe_id=wrong)])
    with pytest.raises((TypeError, ValueError), match="dedupe_id"):
        producer.send(topic.name, {}, dedupe_id=wrong)

    assert entries(topic) == []
    assert not topic.client.exists(topic.keys.deduped(0))


@pytest.mark.parametrize("key", ["deduped", "deduped_until"])
def test_where_ids_cannot_be_kept_nothing_is_added(topic, producer, client, key):
    broken = getattr(topic.keys, key)(0)
    client.set(broken, "neither a hash nor a set")

    with pytest.raises(QueueError, match="0 of 2 messages are there") as caught:
        producer.send_many(topic.name, once(1, 2))

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert entries(topic) == []
    client.delete(broken)


def test_a_server_that_has_forgotten_the_script_is_told_it_again(topic, producer, client):
    producer.send_many(topic.name, once(1))
    client.script_flush()

    producer.send_many(topic.name, once(1, 2))

    assert numbers(topic) == [1, 2]


def test_a_client_that_decodes_replies_gets_the_same(topic, server_url):
    with redis.Redis.from_url(server_url, decode_responses=True) as decoding:
        ids = Producer(decoding).send_many(topic.name, once(1, 2))

    assert entries(topic) == [(ids[0], 1), (ids[1], 2)]


def test_only_what_was_added_is_counted(topic, producer):
    for _ in range(2):
        producer.send_many(topic.name, [*once(1, 2), {"n": 3}])

    assert metric("conquiet_mq_produced_total", topic=topic.name, partition="0") == 4
