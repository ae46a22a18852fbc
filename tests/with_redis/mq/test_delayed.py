"""Delayed messages: none is in the way of another, and moving them never takes long."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from conquiet import DrainLimits
from conquiet.mq import Envelope, MqAdmin, MqCollector, Retry, TopicError, drain_partition
from conquiet.mq.send.delayed import move_delayed
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, metric, quick


@pytest.fixture
def keep_due(topic, client):
    """Keeps items that have been due for ages, before all others."""

    def kept(names, item=None):
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.zadd(topic.keys.delayed(0), {name: 1})
            if item is not None:
                pipeline.hset(topic.keys.delayed_items(0), name, item)
        pipeline.execute()

    return kept


def item_of(topic, partition=0):
    return (
        f"{partition}:".encode() + Envelope(topic=topic.name, partition=partition, payload={"n": 1}).encode()
    )


def test_items_that_cannot_be_moved_are_in_nobodys_way_and_are_told(
    topic, producer, client, start, keep_due, caplog
):
    keep_due([f"elsewhere-{n}" for n in range(150)], item_of(topic, partition=7))
    keep_due([f"without-data-{n}" for n in range(150)])
    keep_due([f"without-partition-{n}" for n in range(10)], b"?:{}")
    producer.send(topic.name, {"n": "late"}, delay_ms=5)
    seen = Seen()

    start(topic, seen)

    eventually(lambda: seen.numbers() == ["late"])
    assert client.zcard(topic.keys.delayed(0)) == 310
    assert client.hlen(topic.keys.delayed_items(0)) == 160
    eventually(lambda: metric("conquiet_mq_delayed_stuck_total", topic=topic.name) == 310)
    assert "delayed messages of topic" in caplog.text


def test_an_item_of_a_partition_that_comes_later_is_moved_then(topic, topics, client, keep_due):
    keep_due(["early"], item_of(topic, partition=1))
    move_delayed(topic)
    grown = topics.grow(topic.name, 2)

    keep_due(["early"])
    move_delayed(topic)

    assert client.xlen(grown.keys.stream(1)) == 1
    assert not client.exists(topic.keys.delayed(0), topic.keys.delayed_items(0))


def test_a_backlog_is_moved_in_bounded_calls(topic, client, keep_due):
    keep_due([f"due-{n}" for n in range(250)], item_of(topic))

    has_more = [move_delayed(topic, budget_s=0) for _ in range(3)]

    assert has_more == [True, True, False]
    assert client.xlen(topic.keys.stream(0)) == 250


def test_a_topic_that_was_deleted_moves_nothing_to_a_stream_of_its_name(topic, topics, client, keep_due):
    topics.delete(topic.name)
    keep_due(["left"], item_of(topic))

    with pytest.raises(TopicError, match="was deleted"):
        move_delayed(topic)

    assert not client.exists(topic.name)
    client.delete(topic.keys.delayed(0), topic.keys.delayed_items(0))


def test_what_waits_is_counted_listed_and_cancelled(topic, producer, client):
    later = producer.send(topic.name, {"n": 1}, key="anna", delay_ms=120_000)
    entry_id = producer.send(topic.name, {"n": 2}, key="bert")
    config = quick(retry_mode="requeue")
    drain_partition(topic, 0, GROUP, lambda msg: Retry(60_000), limits=DrainLimits(idle_ms=20), config=config)
    admin, registry = MqAdmin(client), CollectorRegistry()
    registry.register(MqCollector(client, [topic.name]))

    copy, sent = admin.delayed(topic.name)

    assert admin.topic(topic.name).delayed == 2
    assert registry.get_sample_value("conquiet_mq_delayed", {"topic": topic.name}) == 2
    assert (sent.name, sent.group, sent.payload, sent.key, sent.attempt) == (later, None, {"n": 1}, "anna", 0)
    assert (copy.group, copy.payload, copy.key, copy.attempt) == (GROUP, {"n": 2}, "bert", 1)
    assert entry_id in copy.name
    assert 0 < sent.due_at_ms - copy.due_at_ms < 120_000
    assert admin.delayed(topic.name, limit=1) == (copy,)
    assert admin.cancel_delayed(topic.name, [copy.name, sent.name, "other"]) == 2
    assert (admin.delayed(topic.name), client.hlen(topic.keys.delayed_items(0))) == ((), 0)


def test_what_waits_and_cannot_be_read_is_listed_all_the_same(topic, client):
    for name, item in (("no data", None), ("no partition", b"x"), ("no json", b"0:{")):
        client.zadd(topic.keys.delayed(0), {name: 5})
        if item is not None:
            client.hset(topic.keys.delayed_items(0), name, item)

    found = MqAdmin(client).delayed(topic.name)

    assert [(one.name, one.payload) for one in found] == [
        ("no data", None),
        ("no json", None),
        ("no partition", None),
    ]
