"""MqCollector: asked only when scraped, and silent about what it does not know."""

from __future__ import annotations

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet import DrainLimits, drain
from conquiet.mq import MqCollector
from conquiet.mq.look import stats
from tests.eventually import eventually
from tests.services import free_port
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP


@pytest.fixture
def registry():
    return CollectorRegistry(auto_describe=True)


@pytest.fixture
def broken(topic, client):
    """A topic whose stream is no stream."""
    client.set(topic.keys.stream(0), "no stream")
    yield topic
    client.delete(topic.keys.stream(0))


def test_a_scrape_tells_lag_pending_ages_length_and_dead_letters(wide, producer, client, registry):
    for n in range(6):
        producer.send(wide.name, {"n": n}, partition=n % 2)
    Hand(wide, 0).give_up(count=1)
    Hand(wide, 1).read(2)
    registry.register(MqCollector(client, [wide.name]))

    def value(metric, partition):
        return registry.get_sample_value(
            f"conquiet_mq_{metric}", {"topic": wide.name, "partition": str(partition), "group": GROUP}
        )

    assert registry.get_sample_value("conquiet_mq_up") == 1
    assert [value("lag", partition) for partition in wide.partitions] == [2, 1, 0, 0]
    assert [value("pending", partition) for partition in wide.partitions] == [0, 2, 0, 0]
    assert value("oldest_pending_age_seconds", 0) is None
    assert 0 <= value("oldest_pending_age_seconds", 1) < 60
    assert 0 <= value("oldest_undelivered_age_seconds", 0) < 60
    place = {"topic": wide.name, "partition": "1"}
    assert registry.get_sample_value("conquiet_mq_topic_length", place) == 3
    assert registry.get_sample_value("conquiet_mq_dead_letters", {"topic": wide.name}) == 1


def test_every_topic_is_told_unless_some_are_named(topic, wide, client):
    def named(*topics):
        families = MqCollector(client, *topics).collect()
        lengths = next(family for family in families if family.name == "conquiet_mq_topic_length")
        return {sample.labels["topic"] for sample in lengths.samples}

    assert named() >= {topic.name, wide.name}
    assert named([wide.name, "not-created-yet"]) == {wide.name}


def test_an_unknown_lag_is_absent_and_never_zero(topic, send, client, registry):
    ids = send(20)
    Hand(topic).read(1)
    client.xdel(topic.keys.stream(0), ids[10])

    registry.register(MqCollector(client, [topic.name], count_limit=5))

    text = generate_latest(registry).decode()
    assert "conquiet_mq_lag{" not in text
    assert f'conquiet_mq_pending{{group="{GROUP}",partition="0",topic="{topic.name}"}} 1.0' in text


def test_an_unavailable_redis_is_a_scrape_that_says_so(registry):
    client = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))

    registry.register(MqCollector(client))

    text = generate_latest(registry).decode()
    assert "conquiet_mq_up 0.0" in text
    assert "topic=" not in text


def test_a_topic_that_cannot_be_read_makes_the_scrape_say_so(broken, client, registry):
    registry.register(MqCollector(client, [broken.name]))

    assert registry.get_sample_value("conquiet_mq_up") == 0


def test_registering_asks_nothing_and_the_labels_name_no_consumer(topic, send, client, registry):
    send(1)
    Hand(topic, owner="worker-1").read()
    asked = client.info("stats")["total_commands_processed"]

    registry.register(MqCollector(client, [topic.name]))

    assert client.info("stats")["total_commands_processed"] == asked + 1
    assert b"worker-1" not in generate_latest(registry)


def test_owners_and_members_are_told_by_leases_and_not_for_plain_streams_without_any(
    wide, producer, client, registry, start, stream
):
    client.xadd(stream, {"data": "{}"})
    client.xgroup_create(stream, GROUP, "0-0")
    Hand(wide, 1)
    start(wide, lambda msg: None, group="audit")
    registry.register(MqCollector(client, [wide.name, stream]))

    def owned(topic, group):
        place = {"topic": topic, "group": group}
        name = "conquiet_mq_partition_owned"
        return [registry.get_sample_value(name, place | {"partition": str(n)}) for n in range(2)]

    members = {"topic": wide.name, "group": "audit"}
    eventually(lambda: owned(wide.name, "audit") == [1, 1])
    assert registry.get_sample_value("conquiet_mq_members", members) == 1
    assert owned(wide.name, GROUP) == [0, 1]
    assert registry.get_sample_value("conquiet_mq_members", members | {"group": GROUP}) == 0
    assert owned(stream, GROUP) == [None, None]
    assert (
        registry.get_sample_value("conquiet_mq_lag", {"topic": stream, "partition": "0", "group": GROUP}) == 1
    )


def test_what_is_pending_at_dead_consumers_is_a_metric_with_how_long_they_are_silent(
    client, make_queue, engine, stream, monkeypatch
):
    queue = make_queue("died")
    queue.enqueue_many([{"n": n} for n in range(3)])
    queue.read(50, 2)
    names = ("conquiet_mq_pending_at_dead_consumers", "conquiet_mq_dead_consumer_idle_seconds")

    def figures():
        found = {family.name: family for family in MqCollector(client, [stream]).collect()}
        return [sample.value for name in names for sample in found[name].samples]

    assert figures() == [0, 0]
    monkeypatch.setattr(stats, "_DEAD_AFTER_MS", -1)
    pending, idle = figures()
    assert pending == 2
    assert idle >= 0

    # Not what a drain that lives has, however silent it is.
    living = []
    limits = DrainLimits(max_messages=1, idle_ms=20, take_over_dead=False)
    drain(make_queue("lives"), lambda _msg, _session: living.append(figures()), engine, limits)
    assert living[0][0] == 2
