"""A full server (maxmemory, noeviction) refuses what producers send; consumers drain and trim it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from conquiet import DrainLimits, QueueError
from conquiet.mq import (
    DeadLetter,
    DeadLetters,
    MqAdmin,
    Producer,
    Topic,
    TopicPolicies,
    Topics,
    drain_partition,
    drain_topic,
)
from tests.eventually import eventually
from tests.services import REDIS_KINDS
from tests.with_redis.full_server import LARGE, fill, server_of_its_own
from tests.with_redis.mq.consuming import GROUP, SOON, Consumers, dead_letters, pending, quick

TOPIC = "orders"


@pytest.fixture(params=REDIS_KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with server_of_its_own(request.param) as opened:
        yield opened


def fill_topic(client: redis.Redis) -> int:
    producer = Producer(client)
    return fill(client, lambda number, text: producer.send(TOPIC, {"n": number, "text": text}))


class Failing:
    """A handler that fails with some messages once, and with others for ever."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.calls: Counter[int] = Counter()
        self.refused_producers = 0

    def __call__(self, msg) -> DeadLetter | None:
        number = msg.payload["n"]
        with self._lock:
            self.calls[number] += 1
        if number == 0:
            with pytest.raises(QueueError, match="The server is full"):
                Producer(self._client).send(TOPIC, {"n": -1, "text": LARGE})
            self.refused_producers += 1
        if number % 20 == 1 and self.calls[number] == 1:
            raise ValueError("fails once")
        if number % 20 == 2:
            raise ValueError("fails always")
        return DeadLetter("unwanted") if number % 20 == 3 else None

    def expected(self, sent: int) -> dict[int, int]:
        attempts = {1: 2, 2: SOON.max_attempts}
        return {number: attempts.get(number % 20, 1) for number in range(sent)}


@pytest.mark.parametrize("retry_mode", ["in_place", "requeue"])
def test_consumers_drain_a_full_topic_with_retries_and_dead_letters_and_trim_it(
    client: redis.Redis, start: Consumers, retry_mode: str
):
    topic = Topics(client).create(TOPIC, 2, policies=TopicPolicies(retention_length=1, trim_every_s=1))
    sent = fill_topic(client)
    handler = Failing(client)

    start(topic, handler, config=quick(retry_mode=retry_mode, lease_ttl_ms=3_000))

    eventually(lambda: handler.calls == handler.expected(sent), progress=handler.calls.total)
    assert handler.refused_producers == 1
    eventually(lambda: not pending(topic))
    given_up = [number for number in range(sent) if number % 20 in (2, 3)]
    assert sorted(letter["envelope"]["payload"]["n"] for letter in dead_letters(topic)) == given_up
    eventually(lambda: _length(topic) <= 4)
    assert Producer(client).send(TOPIC, {"n": sent, "text": "x" * 8_000})
    eventually(lambda: handler.calls[sent] == 1)


def test_a_drain_of_a_full_partition_acquires_takes_over_hands_back_and_is_trimmed_by_hand(
    client: redis.Redis,
):
    topic = Topics(client).create(TOPIC)
    sent = fill_topic(client)
    handled: list[int] = []

    def handle(msg):
        handled.append(msg.payload["n"])
        if handled == [0, 1, 2, 3, 4, 5]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain_partition(topic, 0, GROUP, handle, limits=DrainLimits(max_messages=10))
    report = drain_partition(topic, 0, GROUP, handle, limits=DrainLimits(max_messages=None, idle_ms=50))

    assert handled == [*range(6), *range(5, sent)]
    assert report.handled == sent - 5
    with pytest.raises(QueueError, match="The server is full"):
        Producer(client).send(TOPIC, {"text": LARGE})
    removed = sum(trim.removed for trim in MqAdmin(client).trim(topic, retention_length=0))
    assert removed >= sent - 1
    assert Producer(client).send(TOPIC, {"text": "x" * 8_000})


def test_a_partition_whose_stream_is_missing_gets_one_on_a_full_server(client: redis.Redis):
    """An earlier version made none before the first message; without it no consumer of the topic gets on."""
    topic = Topics(client).create(TOPIC, 2)
    client.delete(topic.keys.stream(1))
    producer = Producer(client)
    sent = fill(client, lambda number, text: producer.send(TOPIC, {"n": number, "text": text}, partition=0))

    report = drain_topic(topic, GROUP, lambda _msg: None, limits=DrainLimits(max_messages=None, idle_ms=20))

    assert (report.handled, report.busy) == (sent, ())
    assert client.exists(topic.keys.stream(1))


def test_producers_of_every_kind_are_refused_by_a_full_server_and_add_nothing(client: redis.Redis):
    topic = Topics(client).create(TOPIC)
    # The second id is there until somebody forgets it: that is a write, and must not open the script.
    Producer(client).send(TOPIC, {}, dedupe_id="kept for a day")
    Producer(client, dedupe_window_ms=1).send(TOPIC, {}, dedupe_id="to be forgotten")
    drain_partition(
        topic,
        0,
        GROUP,
        lambda msg: DeadLetter("unwanted"),
        limits=DrainLimits(max_messages=1, max_failures=None),
    )
    fill_topic(client)
    [letter] = DeadLetters(topic).list().letters
    length = client.xlen(topic.keys.stream(0))
    producer, large = Producer(client), {"text": LARGE}

    for send in (
        lambda: producer.send(TOPIC, large),
        lambda: producer.send_many(TOPIC, [large]),
        lambda: producer.send(TOPIC, large, dedupe_id="new"),
        lambda: producer.send(TOPIC, large, delay_ms=60_000),
        lambda: DeadLetters(topic).replay(letter.id),
    ):
        with pytest.raises(QueueError, match=r"maxmemory.*The server is full"):
            send()

    assert client.xlen(topic.keys.stream(0)) == length
    assert DeadLetters(topic).count() == 1


def test_delayed_messages_that_are_due_reach_their_partition_on_a_full_server(client: redis.Redis):
    topic = Topics(client).create(TOPIC)
    producer = Producer(client)
    sent = fill(client, lambda number, text: producer.send(TOPIC, {"n": number, "text": text}, delay_ms=1))
    handled: list[int] = []

    def drain_once() -> bool:
        limits = DrainLimits(max_messages=None, idle_ms=100)
        drain_partition(topic, 0, GROUP, lambda msg: handled.append(msg.payload["n"]), limits=limits)
        return len(handled) == sent

    eventually(drain_once)

    assert sorted(handled) == list(range(sent))


def test_consumers_are_pruned_and_groups_and_topics_deleted_on_a_full_server(client: redis.Redis):
    topic = Topics(client).create(TOPIC)
    fill_topic(client)
    drain_partition(topic, 0, GROUP, lambda msg: None, limits=DrainLimits(max_messages=5))

    client.xreadgroup(GROUP, "gone", {topic.keys.stream(0): "0"})
    pruned = MqAdmin(client).prune_consumers(topic, GROUP)
    MqAdmin(client).delete_group(topic, GROUP, force=True)
    Topics(client).delete(TOPIC)

    assert "gone" in [consumer.name for consumer in pruned]
    assert client.keys("stream:topic:*") == []


def test_a_group_is_moved_and_policies_are_changed_on_a_full_server_so_that_it_can_be_trimmed(
    client: redis.Redis,
):
    topic = Topics(client).create(TOPIC, 2)
    client.xgroup_create(topic.keys.stream(0), "abandoned", "0")
    fill_topic(client)
    admin = MqAdmin(client)

    # In the second partition the group has not begun.
    admin.reset_group(topic, "abandoned", to="end", dry_run=False)
    Topics(client).change_policies(TOPIC, TopicPolicies(retention_length=1))
    admin.trim(TOPIC)

    assert [client.xlen(topic.keys.stream(partition)) for partition in topic.partitions] == [1, 1]


def _length(topic: Topic) -> int:
    return sum(topic.client.xlen(topic.keys.stream(partition)) for partition in topic.partitions)
