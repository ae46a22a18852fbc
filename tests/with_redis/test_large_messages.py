"""Large messages: a batch is bounded by its bytes, so that a worker with little memory gets through them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis

from conquiet.mq import DeadLetters, Producer, Topic, Topics
from conquiet.queue import StreamWriter

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


def test_a_worker_with_220_mb_handles_tiny_messages_and_then_large_ones_of_a_topic(valkey_url, name, sender):
    send = sender("topic")
    send(TINY, 300)
    send(LARGE, 40)

    report = work(valkey_url, "topic", name, 340)

    assert report["handled"] == 340
    assert report["peak_mb"] < LIMIT_MB


def test_a_plain_streams_worker_that_met_large_messages_after_tiny_ones_gets_through_when_it_is_restarted(
    valkey_url, name, sender
):
    """Redis does not count bytes there: the one read in which they begin to be large may be too much."""
    send = sender("stream")
    send(TINY, 300)
    send(LARGE, 40)

    first = work(valkey_url, "stream", name, 340, LIMIT_MB)
    second = work(valkey_url, "stream", name, 340 - first["handled"], LIMIT_MB)

    assert first["handled"] >= 200
    assert first["handled"] + second["handled"] == 340


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


def test_large_dead_letters_are_read_few_at_a_time(client, name, sender, monkeypatch):
    sender("topic")(TINY, 0)
    topic = Topics(client).open(name)
    letters = topic.keys.dead_letters(0)
    for _ in range(20):
        client.xadd(letters, {"data": json.dumps(LARGE)})
    counts: list[int] = []
    call = Topic.call

    def recorded(self, *command, **options):
        counts.extend(command[command.index("COUNT") + 1 :] if command[0] == "XRANGE" else ())
        return call(self, *command, **options)

    monkeypatch.setattr(Topic, "call", recorded)
    assert len(DeadLetters(topic).list().letters) == 20
    assert counts == [10] + [1] * 11
