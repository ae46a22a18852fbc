"""Topics: created once, grown but never shrunk, found without SCAN, deleted with all they have."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from sqlalchemy import create_engine

from conquiet import DrainError, DrainLimits, QueueConfig, RedisStreamsQueue, drain
from conquiet.consume.dead_letter import dead_letter_stream
from conquiet.errors import QueueError, TopicError
from conquiet.mq import Message, MqAdmin, Producer, Retry, TopicPolicies, Topics
from conquiet.mq.deletion import delete_keys
from conquiet.queue.connection import drains_key, open_client
from conquiet.queue.ends import EndWatch
from conquiet.queue.round_trip import add_entries
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, dead_letters, quick, wait_until_finished
from tests.with_redis.mq.proxy import LossyProxy


def keys_of(client, name):
    """Whatever the server has under this name."""
    registered = client.sismember("streaming:mq:topics:registry", name)
    return {key.decode() for key in client.keys(f"*{name}*")} | ({"registered"} if registered else set())


def test_of_many_that_create_a_topic_at_once_one_does(topics, name, client):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: topics.create(name, 4), range(8)))

    assert {(topic.partition_count, topic.created_at_ms) for topic in found} == {(4, found[0].created_at_ms)}
    assert client.smembers(f"streaming:mq:topic:{name}:partitions") == {
        f"stream:topic:{name}:p:{partition}".encode() for partition in range(4)
    }


def test_a_topic_is_found_again_as_it_was_created(topics, name):
    policies = TopicPolicies(retention_length=1_000, retention_ms=60_000)

    created = topics.create(name, 3, policies)

    assert topics.open(name) == created
    assert (created.layout, created.partition_count, created.policies) == ("single", 3, policies)


def test_creating_it_again_changes_nothing(topics, name, client):
    topics.create(name, 2)
    before = client.hgetall(f"streaming:mq:topic:{name}:meta")

    topics.create(name, 2)

    assert client.hgetall(f"streaming:mq:topic:{name}:meta") == before


def test_creating_it_with_another_number_of_partitions_is_refused(topics, name):
    topics.create(name, 2)

    with pytest.raises(TopicError, match="exists with 2 partitions, not 3"):
        topics.create(name, 3)
    assert topics.open(name).partition_count == 2


def test_a_topic_grows(topics, name):
    created = topics.create(name, 2, TopicPolicies(retention_length=5))

    grown = topics.grow(name, 5)

    assert (grown.partition_count, list(grown.partitions)) == (5, [0, 1, 2, 3, 4])
    assert (grown.created_at_ms, grown.policies) == (created.created_at_ms, created.policies)


def test_a_topic_never_shrinks_and_the_error_says_why(topics, name):
    topics.create(name, 4)

    with pytest.raises(TopicError, match=r"cannot shrink to 2: messages in the removed .* no reader"):
        topics.grow(name, 2)
    assert topics.open(name).partition_count == 4


def test_a_topic_that_is_not_there_does_not_grow(topics, name, client):
    with pytest.raises(TopicError, match="is not there"):
        topics.grow(name, 2)
    assert keys_of(client, name) == set()


def test_a_name_without_meta_is_a_plain_stream(topics, stream):
    topic = topics.open(stream)

    assert (topic.layout, topic.partition_count, topic.keys.stream(0)) == ("bare_stream", 1, stream)


def test_topics_are_listed_without_looking_at_every_key(topics, name, client):
    names = [f"{name}-{n}" for n in range(3)]
    for each in names:
        topics.create(each)
    scans = client.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"]

    assert [each for each in topics.names() if each.startswith(name)] == names

    assert client.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"] == scans


def test_deleting_a_topic_leaves_nothing(topics, wide, producer, start, client):
    name = wide.name
    producer.send_many(name, [{"n": n} for n in range(8)])
    producer.send(name, {"n": 8}, dedupe_id="once")
    producer.send(name, {"n": 9}, delay_ms=60_000)

    def handler(msg):
        if msg.payload["n"] % 2:
            return Retry(delay_ms=60_000)
        raise ValueError

    start(wide, handler)
    start(wide, handler, group="shipping", config=quick(retry_mode="requeue"))
    eventually(lambda: len(dead_letters(wide)) == 10)
    eventually(lambda: sum(client.zcard(wide.keys.waiting(GROUP, each)) for each in wide.partitions) == 4)
    start.end()
    assert len(keys_of(client, name)) > 15

    topics.delete(name)

    assert keys_of(client, name) == set()
    assert name not in topics.names()


@pytest.mark.parametrize("lease_ttl_ms", [90, 900])
def test_a_topic_that_is_deleted_under_its_consumers_leaves_nothing(
    topics, wide, start, client, lease_ttl_ms
):
    name = wide.name
    is_over = threading.Event()

    def handler(msg):
        if msg.payload["n"] % 3:
            return Retry(delay_ms=1)
        raise ValueError

    def send(dedupe):
        producer = Producer(client)
        while not is_over.is_set():
            try:
                producer.send_many(name, [{"n": n} for n in range(20)])
                producer.send(name, {"n": 1}, dedupe_id=f"{dedupe}-{uuid.uuid4().hex}")
                producer.send(name, {"n": 1}, delay_ms=20)
            except TopicError:
                refused.append(dedupe)
                return

    refused: list[int] = []
    config = {"lease_ttl_ms": lease_ttl_ms, "max_outage_s": 60.0}
    running = [start(wide, handler, config=quick(**config)) for _ in range(2)]
    running += [start(wide, handler, group="b", config=quick(retry_mode="requeue", **config))]
    with ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(send, n) for n in range(3)]
        eventually(lambda: len(keys_of(client, name)) > 20 and client.xlen(wide.keys.dead_letters(0)) > 5)

        topics.delete(name)

        for each in running:
            each.join()
        for each in sending:
            each.result()
    assert len(refused) == 3
    assert [type(each.error) for each in running] == [TopicError] * 3
    assert keys_of(client, name) == set()


def test_a_message_that_is_added_while_its_topic_is_deleted_is_not_reported_as_lost(
    topics, wide, client, monkeypatch, caplog
):
    stream, ends = wide.keys.stream(0), EndWatch(client)
    ends.watch(stream, wide.end_mark(0))
    ends.sent(stream, [client.xadd(stream, {"data": "{}"}).decode()])
    ends.check(stream)

    def delete_after_a_late_message(*arguments):
        # Its id is later than the begin of the deletion.
        time.sleep(0.005)
        ends.sent(stream, [client.xadd(stream, {"data": "{}"}).decode()])
        delete_keys(*arguments)

    monkeypatch.setattr("conquiet.mq.topics.delete_keys", delete_after_a_late_message)
    topics.delete(wide.name)
    ends.check(stream)

    assert "was deleted, or created again" in caplog.text
    assert "has lost entries" not in caplog.text
    assert keys_of(client, wide.name) == set()


def test_a_deletion_that_was_interrupted_is_ended_by_a_second_one(
    topics, wide, producer, client, monkeypatch
):
    producer.send_many(wide.name, [{"n": n} for n in range(8)])
    monkeypatch.setattr("conquiet.mq.topics.delete_keys", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        topics.delete(wide.name)
    monkeypatch.undo()

    assert wide.name not in topics.names()
    with pytest.raises(TopicError, match="is being deleted; if that was interrupted, delete it once more"):
        topics.create(wide.name, 4)
    topics.delete(wide.name)
    assert keys_of(client, wide.name) == set()
    assert topics.create(wide.name, 4).partition_count == 4


def test_a_producer_never_writes_to_a_topic_that_was_deleted(topics, wide, producer, client):
    producer.send(wide.name, {"n": 1})
    topics.delete(wide.name)
    ways = [
        lambda: producer.send(wide.name, {"n": 2}),
        lambda: producer.send(wide.name, {"n": 2}, dedupe_id="a"),
        lambda: producer.send(wide.name, {"n": 2}, delay_ms=10),
        lambda: producer.send_many(wide.name, [{"n": n} for n in range(8)]),
        lambda: producer.send_many(wide.name, [Message(payload={}, dedupe_id=str(n)) for n in range(8)]),
    ]

    for way in ways:
        # As it is looked up within the second, and as it is found by itself.
        producer._topics._known[wide.name] = wide, time.monotonic() + 60
        with pytest.raises(TopicError, match=r"was deleted: 0 of \d messages were added"):
            way()
    assert keys_of(client, wide.name) == set()


def test_of_many_messages_the_error_says_how_many_a_deleted_topic_took(topics, wide, producer, monkeypatch):
    added = scripts_of_deletion_after(monkeypatch, topics, wide)

    with pytest.raises(TopicError, match="was deleted: 10 of 30 messages were added"):
        producer.send_many(wide.name, [{"n": n} for n in range(30)], batch_size=10)
    assert added == [10, 10]


def scripts_of_deletion_after(monkeypatch, topics, topic):
    """The topic is deleted after the first batch; returns the sizes of the batches that were tried."""
    sizes: list[int] = []

    def add(client, entries, *options):
        if sizes:
            topics.delete(topic.name)
        sizes.append(len(entries))
        return add_entries(client, entries, *options)

    monkeypatch.setattr("conquiet.mq.send.producer.add_entries", add)
    return sizes


def test_streams_that_are_missing_are_made_again_as_long_as_the_topic_is_there(wide, producer, start, client):
    """As an earlier version left them, or somebody deleted them."""
    client.delete(*(wide.keys.stream(partition) for partition in wide.partitions))
    seen = Seen()

    ids = producer.send_many(wide.name, [{"n": n} for n in range(8)])
    client.delete(wide.keys.stream(3))
    start(wide, seen)
    producer.send(wide.name, {"n": 8}, partition=3)
    wait_until_finished(wide)

    assert len(ids) == 8
    assert {8} < set(seen.numbers())


def test_other_policies_of_a_topic_that_exists_are_refused_and_changed_by_a_call(topics, name):
    first = TopicPolicies(retention_length=5)
    topics.create(name, 2, first)

    with pytest.raises(TopicError, match=r"exists with other policies.*change_policies"):
        topics.create(name, 2, TopicPolicies(retention_length=6))
    assert topics.create(name, 2, first).policies == topics.create(name, 2).policies == first

    changed = topics.change_policies(name, TopicPolicies(retention_ms=1_000, trim_every_s=60))
    assert changed == topics.open(name)
    assert changed.policies == TopicPolicies(retention_ms=1_000, trim_every_s=60)
    assert changed.partition_count == 2
    with pytest.raises(TopicError, match="is not there"):
        topics.change_policies(f"{name}-other", first)


@pytest.mark.parametrize("state", ["unread", "pending", "no group", "dead letters", "delayed"])
def test_a_topic_is_not_created_over_a_plain_stream_that_has_messages(topics, name, producer, client, state):
    client.xadd(name, {"data": "{}"})
    if state != "no group":
        client.xgroup_create(name, GROUP, "0-0" if state in ("unread", "pending") else "$")
    if state == "pending":
        client.xreadgroup(GROUP, "a", {name: ">"})
    if state == "dead letters":
        client.xadd(f"{{{name}}}:dlq", {"data": "{}"})
    if state == "delayed":
        producer.send(name, {"n": 1}, delay_ms=60_000)
    before = keys_of(client, name)

    with pytest.raises(TopicError, match=r"a plain stream of this name has .*another name"):
        topics.create(name, 2)

    assert keys_of(client, name) == before
    client.delete(*before)


def test_a_topic_is_created_over_a_plain_stream_that_is_finished(topics, name, client):
    client.xadd(name, {"data": "{}"})
    client.xgroup_create(name, GROUP, "$")

    assert topics.create(name, 2).layout == "single"


def test_deleting_a_topic_leaves_others_alone(topics, name, producer, client):
    for each in (name, f"{name}-2"):
        topics.create(each)
        producer.send(each, {"n": 1}, dedupe_id="once")
    others = keys_of(client, f"{name}-2")

    topics.delete(name)

    assert keys_of(client, f"{name}-2") == others


def test_what_is_no_topic_is_not_deleted(topics, stream, client):
    client.xadd(stream, {"data": "{}"})

    with pytest.raises(TopicError, match="is not there"):
        topics.delete(stream)
    assert client.xlen(stream) == 1


@pytest.mark.parametrize("name", ["", "a:b", "{a}"])
def test_a_name_that_would_be_ambiguous_is_refused(topics, name):
    with pytest.raises(ValueError, match="topic must be"):
        topics.create(name)


@pytest.mark.parametrize("partitions", [0, -1, True, 1.0])
def test_a_topic_has_at_least_one_partition(topics, name, partitions):
    with pytest.raises((TypeError, ValueError), match="partitions must be"):
        topics.create(name, partitions)


def test_a_server_that_is_unavailable_is_a_queue_error():
    topics = Topics(open_client("redis://127.0.0.1:1"))

    for call in (lambda: topics.open("orders"), lambda: topics.create("orders"), topics.names):
        with pytest.raises(QueueError):
            call()


def test_a_topic_that_is_created_while_replies_are_lost_is_created_once(server_url, name):
    with LossyProxy(server_url) as proxy, redis.Redis(port=proxy.port) as lossy:
        proxy.lose_reply_to(name.encode())

        assert Topics(lossy).create(name, 2).partition_count == 2
        assert proxy.lost == 1


def test_deleting_a_topic_leaves_nothing_of_groups_that_are_gone(topics, wide, producer, start, client):
    producer.send_many(wide.name, [{"n": n} for n in range(8)])
    start(wide, Seen()).stop()
    MqAdmin(client).delete_group(wide.name, GROUP, force=True)
    assert client.exists(wide.keys.epoch(GROUP, 0))

    topics.delete(wide.name)

    assert keys_of(client, wide.name) == set()


def test_deleting_a_topic_leaves_nothing_of_drains_of_its_streams(topics, wide, producer, client, tmp_path):
    producer.send(wide.name, {"n": 0}, partition=0)
    stream = wide.keys.stream(0)
    queue = RedisStreamsQueue(client, QueueConfig(stream, GROUP, "drain", block_ms=10))
    database = create_engine(f"sqlite:///{tmp_path}/drained.db")

    def fail(_msg, _session):
        raise ValueError

    with pytest.raises(DrainError):
        drain(queue, fail, database, DrainLimits(idle_ms=10))
    drain(queue, fail, database, DrainLimits(idle_ms=10, max_deliveries=1))
    producer.send(wide.name, {"n": 1}, partition=0)
    with pytest.raises(DrainError):
        drain(queue, fail, database, DrainLimits(idle_ms=10))
    assert client.exists(drains_key(stream, GROUP), dead_letter_stream(stream)) == 2

    topics.delete(wide.name)

    assert keys_of(client, wide.name) == set()


def test_a_topic_is_deleted_although_somebody_made_other_things_of_its_keys(topics, wide, producer, client):
    producer.send(wide.name, {"n": 0}, partition=0)
    client.set(wide.keys.stream(1), "not a stream")
    client.set(wide.keys.groups(0), "not a set")
    client.sadd(wide.keys.dead_letters(0), "not a stream")

    topics.delete(wide.name)

    assert keys_of(client, wide.name) == set()
