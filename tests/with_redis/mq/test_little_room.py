"""Partitions whose messages are read in parts, since all of them together are too large."""

from __future__ import annotations

import math

import pytest

from conquiet import QueueError
from conquiet.consume.byte_budget import ByteBudget
from conquiet.errors import LeaseLostError
from conquiet.mq import ConsumerConfig
from conquiet.mq.own.channel import PartitionChannel
from conquiet.mq.own.channel_leases import ChannelLeases
from conquiet.queue.ends import EndWatch
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, pending


def channel_of(topic, budget: ByteBudget, **settings) -> PartitionChannel:
    config = ConsumerConfig(consumer_name="worker-1", **settings)
    channel = PartitionChannel(Hand(topic).leased, config, EndWatch(topic.client), budget)
    channel.lease_valid_until = math.inf
    return channel


class Asked(ByteBudget):
    """Without room, and counts how often it is asked for some."""

    times = 0

    def ask(self, channel: object, in_handlers: int = 0) -> int:
        self.times += 1
        return 0


def test_one_that_is_stopped_waits_for_room_no_longer(topic, send):
    send(1)
    budget = Asked(1)
    channel = channel_of(topic, budget, block_ms=300)
    channel.waiting.wake()

    assert not channel.read((), 10, None)

    assert budget.times <= 2


def test_what_cannot_be_loaded_now_is_handed_back_with_the_rest(topic, producer, client, monkeypatch):
    text = "x" * 1_000
    producer.send_many(topic.name, [{"text": text} for _ in range(3)])
    channel = channel_of(topic, ByteBudget(2_000))
    first = channel.read((), 10, None).messages
    assert len(first) == 1

    def fail(_msg):
        raise QueueError("XRANGE", stream=channel.stream, group=GROUP, reason="no answer")

    load = channel.partition.load
    monkeypatch.setattr(channel.partition, "load", fail)
    with pytest.raises(QueueError):
        channel.read((), 10, None)
    monkeypatch.setattr(channel.partition, "load", load)

    assert channel.hand_back(first) == len(pending(topic))
    assert {count for _, count in pending(topic).values()} == {0}


def test_after_its_lease_was_released_no_handler_commits(topic):
    leases = ChannelLeases(topic, GROUP, ConsumerConfig(consumer_name="worker-1"))
    channel = leases.acquire(topic, 0)
    assert channel is not None
    channel.check_lease()

    leases.release(channel)

    with pytest.raises(LeaseLostError):
        channel.check_lease()
