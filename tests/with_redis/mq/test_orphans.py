"""Orphans: what a reader without a lease has pending in an owned partition, and never settles."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from operator import contains
from typing import Any

from conquiet import DrainLimits
from conquiet.mq import PartitionConsumer, Retry, RetryPolicy, Topic, drain_partition
from conquiet.mq.envelope import Envelope
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Consumers, Seen, metric, pending, quick, wait_until_finished

Numbered = tuple[int, str | None]


def send_to(
    stranger: str, topic: Topic, orphans: Sequence[Numbered], others: Sequence[Numbered] = ()
) -> list[str]:
    """Add messages; a reader of the group that has no lease gets the first of them, before the owner can."""
    stream = topic.keys.stream(0)
    pipeline: Any = topic.client.pipeline(transaction=True)
    for numbered in orphans:
        pipeline.xadd(stream, {"data": _data(topic, *numbered)})
    pipeline.xreadgroup(GROUP, stranger, {stream: ">"}, count=len(orphans))
    for numbered in others:
        pipeline.xadd(stream, {"data": _data(topic, *numbered)})
    replies = pipeline.execute()
    read = [entry_id for entry_id, _ in replies.pop(len(orphans))[0][1]]
    assert read == replies[: len(orphans)]
    return [entry_id.decode() for entry_id in replies]


def _data(topic: Topic, number: int, key: str | None) -> bytes:
    return Envelope(topic=topic.name, partition=0, key=key, payload={"n": number}).encode()


def numbered(count: int, *, start: int = 0) -> list[Numbered]:
    return [(number, None) for number in range(start, start + count)]


def claimed(topic: Topic) -> float:
    return metric("conquiet_mq_claimed_total", topic=topic.name, partition="0", group=GROUP)


def owner(start: Consumers, topic: Topic, handler: Any, **config: Any) -> PartitionConsumer:
    """A consumer that owns the partition and has read what was there."""
    consumer = start(topic, handler, config=quick(**config)).consumer
    topic.client.xadd(topic.keys.stream(0), {"data": _data(topic, -1, None)})
    wait_until_finished(topic)
    return consumer


def ignoring_the_first(handler: Any) -> Any:
    return lambda msg: None if msg.payload["n"] == -1 else handler(msg)


def test_what_a_reader_without_a_lease_left_is_taken_over_by_the_owner_while_it_owns(topic, start):
    seen = Seen()
    owner(start, topic, ignoring_the_first(seen), claim_idle_ms=200)

    sent = send_to("stranger", topic, numbered(25), numbered(5, start=25))

    wait_until_finished(topic)
    assert sorted(seen.ids) == sorted(sent)
    assert claimed(topic) == 25
    assert [msg.attempt for msg in seen if msg.id in sent[:25]] == [2] * 25


def test_orphans_come_in_order_also_beyond_one_batch(topic, start):
    seen = Seen()
    owner(start, topic, ignoring_the_first(seen), claim_idle_ms=200, batch_size=4)

    sent = send_to("stranger", topic, numbered(20))

    wait_until_finished(topic)
    assert seen.ids == sent


def test_a_reader_that_is_not_idle_for_so_long_keeps_what_it_has(topic, start):
    seen = Seen()
    owner(start, topic, ignoring_the_first(seen), claim_idle_ms=500)
    stream, has_ended = topic.keys.stream(0), threading.Event()
    [first] = send_to("alive", topic, numbered(1))

    def keep_alive() -> None:
        while not has_ended.wait(0.01):
            topic.client.xclaim(stream, GROUP, "alive", 0, [first], idle=0, justid=True)

    renewing = threading.Thread(target=keep_alive)
    renewing.start()
    try:
        [second] = send_to("dead", topic, numbered(1, start=1))
        eventually(lambda: seen.ids)
        assert seen.ids == [second]
        assert pending(topic)[first][0] == "alive"
    finally:
        has_ended.set()
        renewing.join()
    eventually(lambda: seen.ids == [second, first])


def test_what_waits_for_its_retry_is_not_taken_as_an_orphan(topic, start):
    attempts: list[tuple[int, int]] = []

    def handle(msg):
        attempts.append((msg.payload["n"], msg.attempt))
        return Retry(delay_ms=3_600_000) if msg.payload["n"] == 0 else None

    owner(start, topic, ignoring_the_first(handle), claim_idle_ms=40)
    waiting = topic.client.xadd(topic.keys.stream(0), {"data": _data(topic, 0, None)}).decode()
    eventually(lambda: topic.client.zscore(topic.keys.waiting(GROUP, 0), waiting))

    # Each of these is handled only after the owner has looked once more.
    for number in range(1, 4):
        send_to("stranger", topic, numbered(1, start=number))
        eventually(partial(contains, attempts, (number, 2)))

    assert attempts == [(0, 1), (1, 2), (2, 2), (3, 2)]
    eventually(lambda: list(pending(topic)) == [waiting])


def test_strict_order_holds_for_orphans_whose_key_waits_for_a_retry(topic, start):
    may_go_on = threading.Event()
    handled: list[int] = []

    def handle(msg):
        if msg.payload["n"] == 0 and not may_go_on.is_set():
            return Retry(delay_ms=50)
        handled.append(msg.payload["n"])
        return None

    often = RetryPolicy(max_attempts=100_000)
    owner(start, topic, ignoring_the_first(handle), claim_idle_ms=200, ordering="strict", retry=often)
    topic.client.xadd(topic.keys.stream(0), {"data": _data(topic, 0, "one")})
    eventually(lambda: topic.client.zcard(topic.keys.waiting(GROUP, 0)))
    send_to("stranger", topic, [(1, "one"), (2, "one")], [(3, "one"), (4, "other")])
    eventually(lambda: claimed(topic) == 2 and 4 in handled)

    assert handled == [4]
    may_go_on.set()

    wait_until_finished(topic)
    assert handled == [4, 0, 1, 2, 3]


def test_a_drain_of_a_partition_takes_orphans_over_too(topic, send):
    send(1)
    seen = Seen()

    def handle(msg):
        seen(msg)
        if len(seen) == 1:
            send_to("stranger", topic, numbered(2, start=1), numbered(1, start=3))

    limits = DrainLimits(idle_ms=600_000, max_messages=4)
    report = drain_partition(topic, 0, GROUP, handle, limits=limits, config=quick(claim_idle_ms=200))

    assert report.handled == 4
    assert sorted(seen.numbers()) == [0, 1, 2, 3]
    assert not pending(topic)


def test_what_was_given_back_to_the_owners_name_by_hand_is_taken_over_too(topic, start):
    taken = threading.Event()
    may_go_on = threading.Event()
    attempts: list[int] = []

    def handle(msg):
        attempts.append(msg.attempt)
        if len(attempts) == 1:
            taken.set()
            may_go_on.wait()
            return Retry(delay_ms=1)
        return None

    consumer = owner(start, topic, ignoring_the_first(handle), claim_idle_ms=200)
    stream, name = topic.keys.stream(0), consumer.config.consumer_name
    entry_id = topic.client.xadd(stream, {"data": _data(topic, 0, None)})
    taken.wait()
    # Its delivery count is another one now, so that its retry is refused.
    topic.client.xclaim(stream, GROUP, name, 0, [entry_id])
    may_go_on.set()

    wait_until_finished(topic)
    assert attempts == [1, 3]


def test_what_the_owner_has_in_flight_is_not_taken_as_an_orphan_of_its_own(topic, start):
    seen = Seen()
    release = threading.Event()

    def handle(msg):
        seen(msg)
        if msg.payload["n"] == 0:
            release.wait()

    owner(start, topic, ignoring_the_first(handle), claim_idle_ms=1, batch_size=3)
    for number in range(5):
        topic.client.xadd(topic.keys.stream(0), {"data": _data(topic, number, None)})
    eventually(lambda: seen.ids)
    release.set()

    wait_until_finished(topic)
    assert seen.numbers() == [0, 1, 2, 3, 4]
    assert {msg.attempt for msg in seen} == {1}


def test_a_key_opens_again_when_its_message_was_taken_out_of_the_waiting_set_by_hand(topic, start):
    handled: list[tuple[int, int]] = []

    def handle(msg):
        handled.append((msg.payload["n"], msg.attempt))
        return Retry(delay_ms=3_600_000) if handled == [(0, 1)] else None

    owner(start, topic, ignoring_the_first(handle), claim_idle_ms=200, ordering="strict")
    stream, waiting = topic.keys.stream(0), topic.keys.waiting(GROUP, 0)
    for number in range(3):
        topic.client.xadd(stream, {"data": _data(topic, number, "one")})
    eventually(lambda: topic.client.zcard(waiting) and topic.client.xpending(stream, GROUP)["pending"] == 3)
    topic.client.delete(waiting)

    wait_until_finished(topic)
    assert handled == [(0, 1), (0, 2), (1, 1), (2, 1)]


def test_a_key_opens_again_when_its_message_was_acked_and_taken_out_of_the_waiting_set_by_hand(topic, start):
    handled: list[tuple[int, int]] = []

    def handle(msg):
        handled.append((msg.payload["n"], msg.attempt))
        return Retry(delay_ms=3_600_000) if msg.payload["n"] == 0 else None

    owner(start, topic, ignoring_the_first(handle), claim_idle_ms=200, ordering="strict")
    stream, waiting = topic.keys.stream(0), topic.keys.waiting(GROUP, 0)
    ids = [topic.client.xadd(stream, {"data": _data(topic, number, "one")}) for number in range(3)]
    eventually(lambda: topic.client.zcard(waiting) and topic.client.xpending(stream, GROUP)["pending"] == 3)

    pipeline: Any = topic.client.pipeline(transaction=True)
    pipeline.zrem(waiting, ids[0])
    pipeline.xack(stream, GROUP, ids[0])
    pipeline.execute()

    wait_until_finished(topic)
    assert handled == [(0, 1), (1, 1), (2, 1)]
