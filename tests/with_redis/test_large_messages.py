"""Large messages: a batch is bounded by its bytes, so that a worker with little memory gets through them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis

from conquiet.mq import DeadLetters, Message, MqAdmin, Producer, Topics
from conquiet.queue import StreamWriter, peek_backlog
from tests.measured_client import MeasuredClient

#: What the worker may need; 40 messages of 4 MB alone, as bytes and as payloads, are 320.
LIMIT_MB = 220
LARGE = {"text": "x" * (4 << 20)}
TINY = {"text": "x"}

Send = Callable[[dict[str, str], int], list[str]]


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as opened:
        yield opened


@pytest.fixture
def name(stream: str) -> str:
    return stream.replace(":", "-")


@pytest.fixture
def sender(client: redis.Redis, name: str) -> Iterator[Callable[[str], Send]]:
    """Makes what sends one payload so many times, to a stream or to a topic."""
    producer, writer = Producer(client), StreamWriter(client, name)

    def make(kind: str) -> Send:
        if kind == "topic":
            Topics(client).create(name)
        add = writer.enqueue if kind == "stream" else lambda payload: producer.send(name, payload)
        return lambda payload, count: [add(payload) for _ in range(count)]

    yield make
    client.delete(name)
    if name in Topics(client).names():
        Topics(client).delete(name)


def work(*arguments: object) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.with_redis.memory_worker", *map(str, arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("kind", ["stream", "topic"])
def test_a_worker_with_220_mb_handles_40_messages_of_4_mb(valkey_url, kind, name, sender):
    sender(kind)(LARGE, 40)

    report = work(valkey_url, kind, name, 40)

    assert report["handled"] == 40
    assert report["peak_mb"] < LIMIT_MB


@pytest.mark.parametrize("kind", ["stream", "topic"])
def test_a_worker_with_220_mb_handles_tiny_messages_and_then_large_ones(valkey_url, kind, name, sender):
    send = sender(kind)
    send(TINY, 300)
    send(LARGE, 40)

    report = work(valkey_url, kind, name, 340)

    assert report["handled"] == 340
    assert report["peak_mb"] < LIMIT_MB


def test_a_drain_keeps_no_large_message_that_failed(valkey_url, name, sender):
    sender("stream")(LARGE, 40)

    report = work(valkey_url, "failing", name, 40)

    assert report["handled"] == 40
    assert report["peak_mb"] < LIMIT_MB


@pytest.mark.parametrize("kind", ["strict", "requeue"])
def test_a_consumer_of_four_partitions_needs_no_more_than_220_mb_although_each_message_fails_first(
    client, valkey_url, name, kind
):
    topic, producer = Topics(client).create(name, 4), Producer(client)
    try:
        for number in range(48):
            # Four keys in each partition: with strict ordering three of four messages are parked.
            producer.send_many(name, [Message(payload=LARGE, key=f"key-{number % 16}", partition=number % 4)])

        report = work(valkey_url, kind, name, 48, LIMIT_MB)

        assert report["handled"] == 48
        assert client.xlen(topic.keys.dead_letters(0)) == 0
    finally:
        Topics(client).delete(name)


@pytest.mark.parametrize("left_by", ["drain", "retry"])
def test_a_topics_large_messages_are_taken_over_and_retried_within_the_limit(
    client, valkey_url, name, sender, left_by
):
    sender("topic")(LARGE, 40)
    topic = Topics(client).open(name)
    stream = topic.keys.stream(0)
    client.xgroup_create(stream, "billing", "0-0")
    client.xreadgroup("billing", "dead", {stream: ">"}, count=40)
    if left_by == "retry":
        due = {row["message_id"]: 0 for row in client.xpending_range(stream, "billing", "-", "+", 40)}
        client.zadd(topic.keys.waiting("billing", 0), due)

    report = work(valkey_url, "topic", name, 40)

    assert report["handled"] == 40
    assert report["peak_mb"] < LIMIT_MB


def test_large_dead_letters_are_read_few_at_a_time(client, valkey_url, name, sender):
    sender("topic")(TINY, 0)
    topic = Topics(client).open(name)
    letters = topic.keys.dead_letters(0)
    for _ in range(20):
        client.xadd(letters, {"data": json.dumps(LARGE)})
    with MeasuredClient.from_url(valkey_url) as measured:
        topic = Topics(measured).open(name)
        first = DeadLetters(topic).list()
        second = DeadLetters(topic).list(after=first.after)
        third = DeadLetters(topic).list(after=second.after)
        DeadLetters(topic).replay_all(dry_run=True)

    # A page has 32 MiB, however many letters were asked for.
    assert [len(page.letters) for page in (first, second, third)] == [8, 8, 4]
    assert third.after is None
    # One that passes 8 MiB is the last one of a reply.
    assert max(measured.sizes) < 13 << 20


def test_large_delayed_messages_are_listed_as_far_as_a_reader_with_little_memory_can_keep_them(
    client, name, sender
):
    sender("topic")(TINY, 0)
    waiting = [Producer(client).send(name, LARGE, delay_ms=3_600_000 + number) for number in range(15)]

    listed = MqAdmin(client).delayed(name, limit=15)

    assert [message.name for message in listed] == waiting[:10]
    assert MqAdmin(client).topic(name).delayed == 15


def test_large_messages_are_counted_few_at_a_time_where_the_server_does_not_know_the_lag(
    client, valkey_url, name, sender
):
    entry_ids = sender("stream")(LARGE, 20)
    client.xgroup_create(name, "billing", "0-0")
    client.xreadgroup("billing", "worker-1", {name: ">"}, count=1)
    client.xdel(name, entry_ids[5])

    with MeasuredClient.from_url(valkey_url) as measured:
        backlog = peek_backlog(measured, stream=name, group="billing")

    # The first one comes for its age, it and the last with XINFO STREAM; no more than 64 MiB are counted.
    assert sum(measured.sizes) < 13 << 20
    assert (backlog.lag, backlog.lag_source) == (None, None)


def test_large_messages_are_trimmed_in_steps_and_the_server_copies_few_of_them_at_once(client, name, sender):
    sender("topic")(LARGE, 30)
    topic, admin = Topics(client).open(name), MqAdmin(client)
    client.xgroup_create(topic.keys.stream(0), "billing", "$")

    (counted,) = admin.trim(topic, retention_length=0, dry_run=True)
    (moved,) = admin.reset_group(topic, "billing", to="start", dry_run=True)
    (trimmed,) = admin.trim(topic, retention_length=0)

    assert counted.has_more
    assert 0 < counted.removed < 10
    assert moved.delivered_again is None
    assert (trimmed.removed, trimmed.has_more, client.xlen(topic.keys.stream(0))) == (29, False, 1)
