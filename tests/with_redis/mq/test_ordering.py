"""Order per key: strict ordering blocks a key while its message waits, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from conquiet.consume.outcome import Settlement
from conquiet.mq import DeadLetter, Message, MqAdmin, Retry, RetryPolicy
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP, Seen, dead_letters, pending, quick, wait_until_finished

KEYS = ("anna", "ben", "clara")


@pytest.fixture
def send_keyed(producer, topic):
    """Sends n = 0, 1, 2 … with the three keys in turn."""

    def sent(count):
        messages = [Message(payload={"n": n}, key=KEYS[n % 3]) for n in range(count)]
        return producer.send_many(topic.name, messages)

    return sent


class FailsFirst(Seen):
    """Fails one message until the given attempt; remembers only what succeeded."""

    def __init__(self, number: int, until: int, answer=None) -> None:
        super().__init__()
        self.number, self.until, self.answer = number, until, answer

    def __call__(self, msg):
        if msg.payload["n"] == self.number and msg.attempt < self.until:
            return self.answer or Retry(delay_ms=150)
        self.append(msg)
        return None


def test_strict_ordering_holds_back_the_key_of_a_waiting_message_and_no_other(topic, send_keyed, start):
    send_keyed(30)
    handler = FailsFirst(0, until=3)

    start(topic, handler, config=quick(ordering="strict"))

    wait_until_finished(topic)
    for key in KEYS:
        assert handler.numbers(key) == sorted(handler.numbers(key))
        assert len(handler.numbers(key)) == 10
    finished = handler.numbers()
    assert max(finished.index(n) for n in finished if n % 3) < finished.index(0)
    assert {msg.attempt for msg in handler if msg.payload["n"]} == {1}


def test_without_strict_ordering_later_messages_of_the_key_go_on(topic, send_keyed, start):
    send_keyed(9)
    handler = FailsFirst(0, until=2)

    start(topic, handler)

    wait_until_finished(topic)
    assert handler.numbers("anna") == [3, 6, 0]


def test_a_dead_letter_frees_its_key(topic, send_keyed, start):
    send_keyed(9)
    handler = FailsFirst(0, until=9, answer=None)

    start(topic, handler, config=quick(ordering="strict"))

    wait_until_finished(topic)
    assert handler.numbers("anna") == [3, 6]
    assert [letter["key"] for letter in dead_letters(topic)] == ["anna"]


def test_the_outcome_dead_letter_frees_its_key_at_once(topic, send_keyed, start):
    send_keyed(6)
    handler = FailsFirst(0, until=9, answer=DeadLetter("never"))

    start(topic, handler, config=quick(ordering="strict"))

    wait_until_finished(topic)
    assert handler.numbers() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("gone", ["acked", "deleted"])
def test_a_key_is_freed_when_its_waiting_message_is_gone(topic, send_keyed, start, client, gone):
    first, *_ = send_keyed(6)
    handler = FailsFirst(0, until=9)
    start(topic, handler, config=quick(ordering="strict"))
    eventually(lambda: len(handler) == 4)

    if gone == "acked":
        client.xack(topic.keys.stream(0), GROUP, first)
    else:
        client.xdel(topic.keys.stream(0), first)

    eventually(lambda: handler.numbers("anna") == [3])


def test_a_key_is_freed_when_the_retry_of_its_message_is_refused(topic, send_keyed, start, client):
    first, *_ = send_keyed(6)
    seen = Seen()

    def settled_by_hand(msg):
        seen(msg)
        if msg.id == first:
            client.xack(topic.keys.stream(0), GROUP, first)
            raise ValueError("after somebody else has acked it")

    start(topic, settled_by_hand, config=quick(ordering="strict"))

    eventually(lambda: seen.numbers("anna") == [0, 3])
    wait_until_finished(topic)


def test_a_full_house_of_waiting_messages_reads_no_more(topic, producer, start):
    producer.send_many(topic.name, [Message(payload={"n": n}, key="anna") for n in range(30)])
    handler = FailsFirst(0, until=2, answer=Retry(delay_ms=400))
    config = quick(batch_size=5, block_ms=20, ordering="strict", max_parked=8)

    start(topic, handler, config=config)

    eventually(lambda: len(pending(topic)) > 8)
    assert len(pending(topic)) <= 1 + 8 + 5
    wait_until_finished(topic)
    assert handler.numbers() == list(range(30))


def test_strict_order_is_kept_over_a_take_over_while_a_message_waits(topic, send_keyed, start):
    send_keyed(12)
    waiting = FailsFirst(0, until=9, answer=Retry(delay_ms=700))
    first = start(topic, waiting, config=quick(ordering="strict"))
    eventually(lambda: len(waiting) == 8)
    first.stop()
    handler = Seen()

    start(topic, handler, config=quick(ordering="strict", batch_size=2))

    wait_until_finished(topic)
    assert handler.numbers() == [0, 3, 6, 9]


def test_what_is_parked_when_its_group_is_reset_is_handled_once(topic, producer, start, client):
    producer.send_many(topic.name, [Message(payload={"n": n}, key="anna") for n in range(3)])
    seen = Seen()
    is_reset = threading.Event()

    def handle(msg):
        if not is_reset.is_set():
            return Retry(delay_ms=1)
        seen(msg)
        return DeadLetter("the second time") if seen.numbers().count(msg.payload["n"]) > 1 else None

    config = quick(ordering="strict", lease_ttl_ms=60_000, retry=RetryPolicy(max_attempts=99))
    start(topic, handle, config=config)
    eventually(lambda: len(pending(topic)) == 3)
    MqAdmin(client).reset_group(topic.name, GROUP, "start", dry_run=False)
    eventually(lambda: client.xinfo_groups(topic.keys.stream(0))[0]["last-delivered-id"] != b"0-0")
    is_reset.set()

    wait_until_finished(topic)
    assert seen.numbers() == [0, 1, 2]
    assert dead_letters(topic) == []


def test_strict_order_is_kept_over_a_pause(topic, send_keyed, start):
    send_keyed(9)
    running: Any = None

    class Pausing(FailsFirst):
        def __call__(self, msg):
            if msg.payload["n"] == 1:
                running.consumer.pause()
            return super().__call__(msg)

    handler = Pausing(0, until=2, answer=Retry(delay_ms=600_000))
    running = start(topic, handler, config=quick(ordering="strict"))
    eventually(lambda: running.consumer.is_paused)
    waiting = topic.keys.waiting(GROUP, 0)
    [first] = eventually(lambda: topic.client.zrange(waiting, 0, -1))

    # Due during the pause.
    topic.client.zadd(waiting, {first: 1})
    running.consumer.resume()

    wait_until_finished(topic)
    assert handler.numbers("anna") == [0, 3, 6]


def test_strict_order_is_kept_if_two_of_a_key_wait_and_the_later_one_is_due_first(topic, producer, start):
    producer.send_many(topic.name, [Message(payload={"n": n}, key="anna") for n in range(3)])
    # As a consumer without strict ordering leaves them.
    hand = Hand(topic)
    waits = [
        Settlement("retry", msg.id, 1, delay_ms, '{"first_delivered_at_ms": 1}')
        for msg, delay_ms in zip(hand.read(2), (900, 100), strict=True)
    ]
    hand.leased.settle_and_read(waits, 0)
    hand.let_go()
    seen = Seen()

    start(topic, seen, config=quick(ordering="strict", lease_ttl_ms=60_000))

    wait_until_finished(topic)
    assert seen.numbers() == [0, 1, 2]
