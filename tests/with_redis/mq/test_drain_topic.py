"""drain_topic: all partitions, one report, until nothing is left."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from sqlalchemy import insert, select

from conquiet import DrainLimits, Inbox
from conquiet.mq import (
    ConsumerConfig,
    Message,
    MqAdmin,
    PartitionConsumer,
    RetryPolicy,
    TopicError,
    Topics,
    drain_topic,
)
from conquiet.mq.send.delayed import move_delayed
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.reports import report_of
from tests.with_redis.mq.consuming import GROUP, Seen, is_finished, owners, quick

SOON = RetryPolicy(base_delay_ms=300, max_delay_ms=300, max_attempts=3)


def drain(topic, handler, engine=None, **options):
    more = {name: options.pop(name) for name in ("inbox", "config", "until") if name in options}
    limits = DrainLimits(**{"idle_ms": 20, "max_messages": None} | options)
    return drain_topic(topic, GROUP, handler, engine, limits, **more)


def fill(producer, topic, count=40, **options):
    messages = [Message(payload={"n": n}, partition=n % topic.partition_count) for n in range(count)]
    return producer.send_many(topic.name, messages, **options)


def due_soon(topic, key):
    """Let all that waits in a sorted set be due in a moment."""
    due_at_ms = int(topic.client.time()[0]) * 1000 + 1_500
    for name in topic.client.zrange(key, 0, -1):
        topic.client.zadd(key, {name: due_at_ms})


def write_effect(msg, session):
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["n"])})


def test_every_partition_is_drained_in_order_into_one_report(wide, producer, engine):
    ids = fill(producer, wide)

    report = drain(wide, write_effect, engine, inbox=Inbox())

    assert (report.read, report.handled, report.stopped_by) == (40, 40, "idle")
    assert (report.topic, report.stream, report.partition, report.busy) == (wide.name, wide.name, None, ())
    assert {report.first_id, report.last_id} <= set(ids)
    with engine.connect() as connection:
        notes = [int(note) for note in connection.scalars(select(effects.c.note))]
    for partition in wide.partitions:
        assert [n for n in notes if n % 4 == partition] == list(range(partition, 40, 4))
    assert is_finished(wide)
    assert owners(wide) == [None] * 4


def test_more_messages_than_one_turn_are_drained_with_every_partition_in_turn(wide, producer):
    fill(producer, wide, 4_800)
    seen = Seen()

    report = drain(wide, seen)

    assert report.handled == 4_800
    # 1,000 of the first partition, then the others, then the rest of each.
    assert [seen[n].partition for n in range(0, 4_000, 1_000)] == [0, 1, 2, 3]


def test_a_retry_that_waits_ends_the_drain_unless_it_is_to_go_on_until_all_is_settled(wide, producer):
    fill(producer, wide, 8)
    failed = set()

    def fail_once(msg):
        if msg.payload["n"] not in failed:
            failed.add(msg.payload["n"])
            raise ConnectionError

    config = ConsumerConfig(retry=RetryPolicy(base_delay_ms=3_600_000, max_delay_ms=3_600_000))
    idle = drain(wide, fail_once, config=config)
    assert (idle.retried, idle.handled, idle.stopped_by) == (8, 0, "idle")

    for partition in wide.partitions:
        due_soon(wide, wide.keys.waiting(GROUP, partition))
    settled = drain(wide, fail_once, config=config, until="settled")

    assert (settled.handled, settled.retried, settled.stopped_by) == (8, 0, "idle")
    assert is_finished(wide)


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_until_settled_every_message_is_handled_or_a_dead_letter(wide, producer, mode):
    fill(producer, wide, 6)

    def handler(msg):
        if msg.payload["n"] == 3:
            raise ValueError
        if msg.payload["n"] == 4 and msg.attempt == 1:
            raise ConnectionError

    config = ConsumerConfig(retry=SOON, retry_mode=mode)
    report = drain(wide, handler, config=config, until="settled")

    assert (report.handled, report.dead_lettered, report.retried) == (5, 1, 3)
    assert len(report.failures) == 4
    assert is_finished(wide)
    assert MqAdmin(wide.client).topic(wide).delayed == 0


def test_until_empty_delayed_messages_are_waited_for(wide, producer):
    fill(producer, wide, 4)
    producer.send(wide.name, {"n": 99}, delay_ms=3_600_000)

    assert drain(wide, Seen(), until="settled").handled == 4
    due_soon(wide, wide.keys.delayed(0))
    seen = Seen()
    assert drain(wide, seen, until="empty").handled == 1
    assert seen.numbers() == [99]


def test_until_empty_what_is_added_at_any_moment_is_handled(wide, producer):
    for moment in range(1, 16):
        producer.send(wide.name, {"n": moment}, delay_ms=3_600_000)
        moments = itertools.count(1)

        def add_in_time(moments=moments, moment=moment):
            if next(moments) == moment:
                for name in wide.client.zrange(wide.keys.delayed(0), 0, -1):
                    wide.client.zadd(wide.keys.delayed(0), {name: 0})
                move_delayed(wide)
            return False

        seen = Seen()
        drain(wide, seen, until="empty", idle_ms=1, should_stop=add_in_time)
        assert seen.numbers() == [moment]


def test_the_limits_are_of_all_partitions_together(wide, producer):
    fill(producer, wide)
    assert drain(wide, Seen(), max_messages=15).stopped_by == "max_messages"
    (group,) = MqAdmin(wide.client).groups(wide)
    assert group.lag == 25

    def fail(msg):
        raise ValueError

    report = drain(wide, fail, max_failures=7)
    assert (report.retried, report.stopped_by) == (7, "max_failures")

    def slow(msg):
        time.sleep(0.05)

    assert (
        drain(wide, slow, max_duration_s=0.1, config=ConsumerConfig(retry=SOON)).stopped_by == "max_duration"
    )
    assert drain(wide, Seen(), should_stop=lambda: True).stopped_by == "stop"


def test_what_another_consumer_owns_is_left_to_it_and_named(wide, producer):
    with PartitionConsumer(wide, GROUP, Seen(), config=quick(max_partitions=1)) as owner:
        assert owner.wait_until_owned(HANG_S)
        (busy,) = owner.owned
        owner.pause()
        fill(producer, wide)
        report = drain(wide, Seen())
    assert report.busy == (busy,)
    assert report.handled == 30


def test_a_partition_that_is_added_meanwhile_is_drained_too(wide, topics, producer):
    fill(producer, wide, 4)
    seen = Seen()

    def grow(msg):
        seen(msg)
        if len(seen) == 1:
            topics.grow(wide.name, 5)
            eventually(lambda: Topics(wide.client).open(wide.name).partition_count == 5)
            wide.client.xadd(f"stream:topic:{wide.name}:p:4", {"data": b'{"n": 99}'})

    # Until then nothing has read it.
    assert drain(wide, grow).read == 5


def test_what_dead_owners_left_is_drained(wide, producer):
    fill(producer, wide, 8)
    for partition in wide.partitions:
        wide.client.xgroup_create(wide.keys.stream(partition), GROUP, "0")
        wide.client.xreadgroup(GROUP, "dead", {wide.keys.stream(partition): ">"})

    report = drain(wide, Seen())

    assert report.handled == 8
    assert is_finished(wide)


def test_an_error_carries_the_report_of_all_partitions(wide, producer):
    fill(producer, wide)

    def fail(msg):
        if msg.partition == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        drain(wide, fail, on_error="raise")

    report = report_of(caught.value)
    assert (report.handled, report.retried, report.stopped_by, report.partition) == (20, 1, "error", None)


def test_a_wrong_end_and_a_topic_that_is_not_there_are_refused(wide, topics):
    with pytest.raises(ValueError, match="until must be"):
        drain(wide, Seen(), until="done")
    topics.delete(wide.name)
    with pytest.raises(TopicError):
        drain(wide, Seen())


def test_partitions_that_are_drained_at_once_share_the_bytes_that_may_be_in_memory(wide, producer):
    fill(producer, wide)
    inside, most, lock = 0, 0, threading.Lock()

    def handle(_msg):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with lock:
            inside -= 1

    limits = DrainLimits(max_messages=None, idle_ms=20)
    config = ConsumerConfig(max_bytes=1, max_partitions=4)
    report = drain_topic(wide, GROUP, handle, limits=limits, config=config)

    assert (report.handled, most) == (40, 1)
