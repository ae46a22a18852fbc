"""Topics: created once, grown but never shrunk, found without SCAN, deleted with all they have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from conquiet.errors import QueueError, TopicError
from conquiet.mq import MqAdmin, Retry, TopicPolicies, Topics
from conquiet.queue.connection import open_client
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, dead_letters, quick
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


def test_a_server_that_is_away_is_a_queue_error():
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


def test_a_topic_is_deleted_although_somebody_made_other_things_of_its_keys(topics, wide, producer, client):
    producer.send(wide.name, {"n": 0}, partition=0)
    client.set(wide.keys.stream(1), "not a stream")
    client.set(wide.keys.groups(0), "not a set")
    client.sadd(wide.keys.dead_letters(0), "not a stream")

    topics.delete(wide.name)

    assert keys_of(client, wide.name) == set()
