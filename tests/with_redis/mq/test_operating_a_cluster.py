"""Dead letters, admin and collector on a real cluster, where every partition has dead letters of its own."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.cluster import RedisCluster

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, MqAdmin, MqCollector, Producer, Retry, TopicError, Topics
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.send.delayed import move_delayed
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, quick


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedServer(cluster=3) as server, RedisCluster(host="127.0.0.1", port=server.port) as client:
        yield client


@pytest.fixture
def spread(cluster):
    """A topic whose partitions lie on all three nodes."""
    topic = Topics(cluster).create(f"orders-{uuid.uuid4().hex[:10]}", 12)
    nodes = {cluster.get_node_from_key(topic.keys.stream(partition)).port for partition in topic.partitions}
    assert len(nodes) == 3
    return topic


@pytest.fixture
def hands(spread, cluster):
    """Two messages in every partition, and a hand on each."""
    producer = Producer(cluster)
    for n in range(24):
        producer.send(spread.name, {"n": n}, partition=n % 12)
    return [Hand(spread, partition) for partition in spread.partitions]


def test_letters_of_all_partitions_are_merged_in_the_order_of_time(spread, hands):
    for hand in hands:
        hand.give_up()
    letters = DeadLetters(spread)

    seen: list[Any] = []
    after = None
    while not seen or after:
        page = letters.list(limit=5, after=after)
        seen += page.letters
        after = page.after

    times = [tuple(map(int, letter.id.split("@")[0].split("-"))) for letter in seen]
    assert times == sorted(times)
    assert len({letter.id for letter in seen}) == letters.count() == 24
    assert {letter.payload["n"] % 12 == letter.partition for letter in seen} == {True}


def test_each_letter_goes_back_to_its_own_partition_once(spread, hands):
    for hand in hands:
        hand.give_up()
    letters = DeadLetters(spread)
    first = letters.list().letters[0]

    assert letters.replay(first.id) is not None
    assert letters.replay(first.id) is None
    assert letters.replay_all().replayed == 23

    for partition, hand in enumerate(hands):
        assert {msg.payload["n"] % 12 for msg in hand.read()} == {partition}


def test_letters_of_partitions_that_came_later_are_found(spread, cluster):
    letters = DeadLetters(spread)
    grown = Topics(cluster).grow(spread.name, 14)
    Producer(cluster).send(spread.name, {"n": 13}, partition=13)
    Hand(grown, 13).give_up()

    assert letters.count() == 1
    assert [letter.payload for letter in letters.list().letters] == [{"n": 13}]
    assert letters.replay_all().replayed == 1
    assert cluster.xlen(grown.keys.stream(13)) == 2


def test_an_id_that_several_partitions_have_must_say_which(spread):
    for partition in (2, 5):
        spread.client.xadd(spread.keys.dead_letters(partition), {"data": "{}"}, id="7-0")
    letters = DeadLetters(spread)

    with pytest.raises(TopicError, match="give 7-0@2 or 7-0@5"):
        letters.purge(["7-0"])

    assert letters.purge(["7-0@5"]) == 1
    assert letters.show("7-0").partition == 2


def test_the_admin_sees_and_mends_every_partition(spread, hands, cluster):
    admin = MqAdmin(cluster)
    hands[0].finish(hands[0].read())
    hands[1].read()
    LeaseStore(spread, GROUP).heartbeat("worker-1", 60_000)
    cluster.xgroup_createconsumer(spread.keys.stream(3), GROUP, "dead")

    stats = {topic.name: topic for topic in admin.topics()}[spread.name]
    (group,) = admin.groups(spread.name)

    assert (stats.partitions, stats.length) == (12, 24)
    assert (group.lag, group.pending) == (20, 2)
    assert [entry.partition for entry in admin.pending(spread.name, GROUP, sort="id").entries] == [1, 1]
    assert {owner.owner for owner in admin.owners(spread.name, GROUP).partitions} == {"worker-1"}
    assert [(pruned.partition, pruned.name) for pruned in admin.prune_consumers(spread.name, GROUP)] == [
        (3, "dead")
    ]
    assert sum(trim.removed for trim in admin.trim(spread.name, retention_length=0)) == 1
    resets = admin.reset_group(spread.name, GROUP, "end", dry_run=False)
    assert sum(reset.skipped or 0 for reset in resets) == 20
    admin.delete_group(spread.name, GROUP, force=True)
    assert admin.groups(spread.name) == []


def test_a_scrape_reads_all_nodes(spread, hands, cluster):
    for hand in hands:
        hand.give_up()
    registry = CollectorRegistry()

    registry.register(MqCollector(cluster, [spread.name]))

    assert registry.get_sample_value("conquiet_mq_up") == 1
    assert registry.get_sample_value("conquiet_mq_dead_letters", {"topic": spread.name}) == 24


def test_no_partition_waits_for_the_delayed_messages_of_another(cluster, spread):
    pipeline = cluster.pipeline()
    for partition in spread.partitions:
        for n in range(120):
            pipeline.hset(spread.keys.delayed_items(partition), f"due-{n}", f"{partition}:{{}}")
            pipeline.zadd(spread.keys.delayed(partition), {f"due-{n}": 1})
    pipeline.execute()

    has_more = [move_delayed(spread, budget_s=0)]
    lengths = {cluster.xlen(spread.keys.stream(partition)) for partition in spread.partitions}
    has_more.append(move_delayed(spread, budget_s=0))

    assert (has_more, lengths) == ([True, False], {100})
    assert {cluster.xlen(spread.keys.stream(partition)) for partition in spread.partitions} == {120}


def test_a_group_that_is_kept_is_kept_on_every_node(cluster, spread):
    admin, producer = MqAdmin(cluster), Producer(cluster)
    for partition in spread.partitions:
        producer.send(spread.name, {}, partition=partition)
        hand = Hand(spread, partition)
        messages = hand.read()
        hand.finish(messages if partition < 11 else [])
        hand.let_go()

    with pytest.raises(TopicError, match="1 messages of partition 11 are pending"):
        admin.delete_group(spread.name, GROUP)
    (kept,) = admin.groups(spread.name)
    admin.delete_group(spread.name, GROUP, force=True)

    assert all(partition.last_delivered_id for partition in kept.partitions)
    assert admin.groups(spread.name) == []


def test_the_copies_of_a_group_are_found_in_every_partition(cluster, spread, start):
    admin, producer = MqAdmin(cluster), Producer(cluster)
    for partition in spread.partitions:
        producer.send(spread.name, {}, partition=partition)
    running = start(spread, lambda _: Retry(60_000), config=quick(retry_mode="requeue"))

    def waiting():
        return sum(cluster.zcard(spread.keys.delayed(partition)) for partition in spread.partitions)

    eventually(lambda: waiting() == 12)
    running.stop()

    with pytest.raises(TopicError, match="12 messages wait as copies for their retry"):
        admin.delete_group(spread.name, GROUP)
    admin.delete_group(spread.name, GROUP, force=True)

    assert waiting() == 0
