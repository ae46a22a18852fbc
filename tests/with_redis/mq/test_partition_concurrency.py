"""Partitions with several messages in handlers: the order of keys, leases, limits and gates as with one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest
from sqlalchemy import insert

from conquiet import DrainLimits, Retry, batch_handler
from conquiet.mq import (
    ConsumerConfig,
    LeaseLostError,
    Message,
    PartitionConsumer,
    RetryPolicy,
    drain_partition,
    drain_topic,
)
from conquiet.mq.own.leases import LeaseStore
from tests.conftest import effects
from tests.eventually import eventually
from tests.with_redis.mq.test_drain_partition import GROUP, effect_ids, pending, write_effect
from tests.with_redis.test_drain_concurrency import Crowd


def limits(**options) -> DrainLimits:
    return DrainLimits(**{"concurrency": 4, "idle_ms": 50} | options)


def send_keys(producer, topic, messages: int, keys: int) -> None:
    producer.send_many(
        topic.name, [Message(payload={"n": n}, key=f"k{n % keys}", partition=0) for n in range(messages)]
    )


def test_a_partition_keeps_the_order_of_its_keys_while_others_go_on(topic, producer, client, engine):
    send_keys(producer, topic, 80, keys=5)
    seen, lock, crowd = defaultdict(list), threading.Lock(), Crowd(4)

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 4):
            write_effect(msg, session)
        with lock:
            seen[msg.key].append(msg.payload["n"])

    report = drain_partition(topic, 0, GROUP, handler, engine, limits())

    assert (report.handled, crowd.most, pending(client, topic)) == (80, 4, 0)
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_with_strict_ordering_later_messages_of_a_key_wait_for_its_retry(topic, producer, client, engine):
    send_keys(producer, topic, 40, keys=4)
    seen, lock = defaultdict(list), threading.Lock()

    def handler(msg, session):
        time.sleep(0.001)
        if msg.payload["n"] % 10 == 3 and msg.attempt == 1:
            return Retry(delay_ms=20)
        with lock:
            seen[msg.key].append(msg.payload["n"])
        return None

    config = ConsumerConfig(ordering="strict")
    report = drain_topic(topic, GROUP, handler, engine, limits(), config=config, until="settled")

    assert (report.handled, report.retried, pending(client, topic)) == (40, 4, 0)
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_strict_ordering_with_another_order_is_refused(topic, engine):
    config = ConsumerConfig(ordering="strict")

    with pytest.raises(ValueError, match="leave out order_by"):
        drain_partition(topic, 0, GROUP, write_effect, engine, limits(order_by=False), config=config)
    with pytest.raises(ValueError, match="leave out order_by"):
        ConsumerConfig(ordering="strict", order_by="customer")


def test_after_a_lost_lease_nothing_is_acked_and_no_handler_runs_on(topic, producer, client):
    send_keys(producer, topic, 20, keys=20)
    crowd, taken = Crowd(4), []

    def handler(msg):
        with crowd.entered(waits=True):
            if msg.payload["n"] == 0:
                taken.append(LeaseStore(topic, GROUP).acquire(0, "try-2", 60_000, replaces=("try-1",)))
            eventually(lambda: taken)

    with pytest.raises(LeaseLostError):
        drain_partition(
            topic, 0, GROUP, handler, limits=limits(), config=ConsumerConfig(consumer_name="try-1")
        )

    assert pending(client, topic) == 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("conquiet-handler")]


def test_a_consumer_handles_no_more_at_once_than_max_handlers(topic, producer, client, engine):
    producer.send_many(topic.name, [Message(payload={"n": n}, key=f"k{n}") for n in range(60)])
    crowd, config = Crowd(3), ConsumerConfig(concurrency=4, max_handlers=3, block_ms=20)
    begun, lock = [], threading.Lock()

    def handler(msg):
        with lock:
            begun.append(msg.id)
            waits = len(begun) <= 3
        with crowd.entered(waits=waits):
            time.sleep(0.002)

    with PartitionConsumer(topic, GROUP, handler, config=config):
        eventually(lambda: len(begun) == 60 and pending(client, topic) == 0)

    assert crowd.most == 3


def test_a_consumer_with_batches_handles_everything_once(topic, producer, client, engine):
    producer.send_many(topic.name, [Message(payload={"n": n}, key=f"k{n % 9}") for n in range(200)])
    sizes = []

    @batch_handler
    def handler(messages, session):
        sizes.append(len(messages))
        session.execute(
            insert(effects), [{"entry_id": str(msg.payload["n"]), "note": ""} for msg in messages]
        )

    with PartitionConsumer(topic, GROUP, handler, engine, config=ConsumerConfig(block_ms=20)):
        eventually(lambda: len(effect_ids(engine)) == 200 and pending(client, topic) == 0)

    assert sorted(map(int, effect_ids(engine))) == list(range(200))
    assert max(sizes) > 1


def test_of_a_failed_batch_only_the_poison_message_is_counted_and_dead_lettered(
    topic, producer, client, engine
):
    send_keys(producer, topic, 10, keys=3)
    attempts = defaultdict(list)

    @batch_handler
    def handler(messages, session):
        for msg in messages:
            attempts[msg.payload["n"]].append((len(messages), msg.attempt))
        if any(msg.payload["n"] == 4 for msg in messages):
            raise ValueError("poison")

    config = ConsumerConfig(retry=RetryPolicy(max_attempts=2, base_delay_ms=1))
    report = drain_topic(
        topic, GROUP, handler, engine, DrainLimits(idle_ms=50), config=config, until="settled"
    )

    assert (report.handled, report.retried, report.dead_lettered) == (9, 1, 1)
    assert attempts[0] == [(10, 1), (1, 1)]
    assert attempts[4] == [(10, 1), (1, 1), (1, 2)]


def test_with_strict_ordering_a_failed_batch_parks_what_comes_after_its_poison_message(
    topic, producer, client, engine
):
    send_keys(producer, topic, 12, keys=3)
    seen = defaultdict(list)

    @batch_handler
    def handler(messages, session):
        if any(msg.payload["n"] == 4 and msg.attempt == 1 for msg in messages):
            raise ValueError("poison, once")
        for msg in messages:
            seen[msg.key].append(msg.payload["n"])

    config = ConsumerConfig(ordering="strict", retry=RetryPolicy(base_delay_ms=20))
    report = drain_topic(
        topic, GROUP, handler, engine, DrainLimits(idle_ms=50), config=config, until="settled"
    )

    assert (report.handled, report.retried) == (12, 1)
    assert dict(seen) == {"k0": [0, 3, 6, 9], "k1": [1, 4, 7, 10], "k2": [2, 5, 8, 11]}


def test_messages_in_handlers_count_as_bytes_in_memory_until_they_have_ended(topic, producer, client):
    text = "x" * 1_000_000
    producer.send_many(topic.name, [Message(payload={"n": n, "text": text}, key=f"k{n}") for n in range(8)])
    crowd, config = Crowd(1), ConsumerConfig(max_bytes=2_500_000)

    def handler(msg):
        with crowd.entered(waits=False):
            time.sleep(0.05)

    report = drain_partition(topic, 0, GROUP, handler, limits=limits(), config=config)

    assert (report.handled, pending(client, topic)) == (8, 0)
    assert crowd.most <= 2


def test_a_huge_message_among_small_ones_keeps_nobody_waiting_forever(topic, producer, client):
    texts = ["x" * (3_000_000 if n % 5 == 2 else 10) for n in range(20)]
    producer.send_many(
        topic.name, [Message(payload={"text": text}, key=f"k{n}") for n, text in enumerate(texts)]
    )

    report = drain_partition(
        topic, 0, GROUP, lambda msg: None, limits=limits(), config=ConsumerConfig(max_bytes=1_000_000)
    )

    assert (report.handled, pending(client, topic)) == (20, 0)


def test_without_limits_a_drain_of_a_topic_handles_as_many_at_once_as_its_config_says(topic, producer):
    send_keys(producer, topic, 12, keys=12)
    crowd = Crowd(3)

    def handler(msg):
        with crowd.entered(waits=msg.payload["n"] < 3):
            pass

    report = drain_topic(topic, GROUP, handler, config=ConsumerConfig(concurrency=3))

    assert (report.handled, crowd.most) == (12, 3)
