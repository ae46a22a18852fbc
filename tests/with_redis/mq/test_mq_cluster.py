"""The MQ on a real cluster of three nodes, partitions on each of them."""

from __future__ import annotations

import threading

import pytest
from redis.cluster import RedisCluster
from sqlalchemy import insert, select

from conquiet import EmbeddedServer, Inbox
from conquiet.mq import DeadLetter, Message, PartitionConsumer, Producer, Retry, TopicError, Topics
from conquiet.queue.connection import open_client
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.by_hand import Hand
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

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedServer(cluster=3) as server:
        yield server


@pytest.fixture(params=["ours", "as redis-py makes it"])
def client(cluster, request):
    is_ours = request.param == "ours"
    opened = open_client(cluster.url) if is_ours else RedisCluster(host="127.0.0.1", port=cluster.port)
    yield opened
    opened.close()


@pytest.fixture
def topic(client, name):
    return Topics(client).create(name, PARTITIONS)


def send(topic, count):
    messages = [Message(payload={"n": n}, key=f"k{n % 20}") for n in range(count)]
    return Producer(topic.client).send_many(topic.name, messages)


def keys_of(client, name):
    return set(client.keys(f"*{name}*", target_nodes=RedisCluster.PRIMARIES))


def test_messages_on_every_node_are_handled_in_order(topic, client, start, engine):
    ids = send(topic, 120)
    seen = Seen()

    def write(msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.partition)})
        seen(msg)

    start(topic, write, engine=engine, inbox=Inbox())

    wait_until_finished(topic)
    with engine.connect() as connection:
        assert sorted(connection.scalars(select(effects.c.entry_id))) == sorted(ids)
    for key in {msg.key for msg in seen}:
        assert seen.numbers(key) == sorted(seen.numbers(key))
    streams = [topic.keys.stream(partition) for partition in topic.partitions]
    assert len({client.get_node_from_key(stream).port for stream in streams}) == 3


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_retries_and_dead_letters_work_on_every_node(topic, start, mode):
    ids = send(topic, 24)
    succeeded = Seen()

    def handler(msg):
        if msg.payload["n"] % 3 == 0:
            return DeadLetter("no")
        if msg.attempt == 1:
            return Retry(delay_ms=10)
        return succeeded(msg)

    start(topic, handler, config=quick(retry_mode=mode))

    eventually(lambda: len(succeeded) == 16)
    wait_until_finished(topic)
    letters = dead_letters(topic)
    assert {letter["originalMessageId"] for letter in letters} <= set(ids)
    assert len(letters) == 8
    assert {letter["partition"] for letter in letters} > {letters[0]["partition"]}


def test_members_share_the_partitions_and_take_over(topic, start):
    first, second = start(topic, Seen()), start(topic, seen := Seen())
    eventually(lambda: sorted(owners(topic), key=str) == sorted([first.name, second.name] * 3))

    first.stop()
    send(topic, 60)

    eventually(lambda: owners(topic) == [second.name] * PARTITIONS)
    wait_until_finished(topic)
    assert len(seen) == 60


def test_settlements_are_fenced(topic, start, client):
    Producer(client).send(topic.name, {"n": 0}, partition=3)
    entered, go_on = threading.Event(), threading.Event()

    def wait(msg):
        entered.set()
        assert go_on.wait(timeout=HANG_S)

    # Not a lease that may end meanwhile: its next holder would take the entry from the thief.
    start(topic, wait, config=quick(lease_ttl_ms=60_000))
    assert entered.wait(timeout=HANG_S)
    ((entry_id, _),) = pending(topic).items()
    client.xclaim(topic.keys.stream(3), GROUP, "thief", 0, [entry_id])
    go_on.set()

    place = {"topic": topic.name, "partition": "3", "group": GROUP}
    eventually(lambda: metric("conquiet_mq_fenced_total", **place) == 1)
    assert pending(topic) == {entry_id: ("thief", 2)}


def test_what_a_dead_owner_left_is_taken_over(topic, start, client):
    ids = send(topic, 60)
    for partition in topic.partitions:
        client.xgroup_create(topic.keys.stream(partition), GROUP, "0-0", mkstream=True)
        client.xreadgroup(GROUP, "dead", {topic.keys.stream(partition): ">"}, count=7)
    seen = Seen()

    start(topic, seen, config=quick(batch_size=3))

    wait_until_finished(topic)
    assert sorted(seen.ids) == sorted(ids)


def test_delayed_and_deduped_messages(topic, client, start):
    producer = Producer(client)
    for n in range(12):
        producer.send(topic.name, {"n": n}, key=f"k{n}", delay_ms=30)
    for _ in range(3):
        producer.send(topic.name, {"n": 12}, key="k", dedupe_id="once")
    seen = Seen()

    start(topic, seen)

    eventually(lambda: sorted(seen.numbers()) == list(range(13)))


def test_many_messages_on_every_node_are_each_added_once_and_in_order(topic, client):
    messages = [
        Message(payload={"n": n}, key=f"k{n % 20}", dedupe_id=f"order-{n}" if n % 4 else None)
        for n in range(200)
    ]
    producer = Producer(client)

    first = producer.send_many(topic.name, messages, batch_size=30)
    second = producer.send_many(topic.name, messages)

    assert [second[n] for n in range(200) if n % 4] == [first[n] for n in range(200) if n % 4]
    hand = [Hand(topic, partition).read(500) for partition in topic.partitions]
    assert sum(map(len, hand)) == 250
    for partition in hand:
        numbers = [msg.payload["n"] for msg in partition]
        again = [n for n in sorted(numbers) if numbers.count(n) == 2]
        assert numbers == sorted(set(numbers)) + sorted(set(again))


def test_a_topic_grows_and_is_deleted_with_all_it_has(topic, client, start):
    topics = Topics(client)
    running = start(topic, seen := Seen())
    grown = topics.grow(topic.name, 9)
    Producer(client).send(topic.name, {"n": 1}, partition=8, dedupe_id="once")
    Producer(client).send(topic.name, {"n": 1}, delay_ms=60_000)
    eventually(lambda: seen.numbers() == [1])
    running.stop()
    assert topic.name in topics.names()

    topics.delete(grown.name)

    assert keys_of(client, topic.name) == set()
    assert topic.name not in topics.names()


def test_a_plain_stream_is_a_topic_with_one_partition(client, start, stream):
    client.xadd(stream, {"data": '{"n": 7}'})
    topic = Topics(client).open(stream)
    seen = Seen()

    start(topic, seen)

    wait_until_finished(topic)
    assert seen.numbers() == [7]


@pytest.mark.parametrize("odd", ["a}b", "{}a{b}"])
def test_a_plain_stream_with_braces_that_leave_no_slot_is_refused_with_a_sentence(client, stream, odd):
    name = f"{odd}{stream}"
    client.xadd(name, {"data": '{"n": 7}'})

    with pytest.raises(TopicError, match="cannot be consumed on a cluster"):
        PartitionConsumer(Topics(client).open(name), GROUP, Seen())
