"""Fewer database connections than partitions: workers share them, and no message is at fault."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select

from conquiet import DrainLimits, Inbox
from conquiet.mq import Producer, RetryPolicy, drain_partition
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import GROUP, dead_letters, owners, quick, wait_until_finished

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def make_engine(tmp_path):
    """Engines with a pool of the given size."""
    opened = []

    def make(**pool):
        engine = create_engine(f"sqlite:///{tmp_path}/effects.db", max_overflow=0, **pool)
        opened.append(engine)
        effects.create(engine, checkfirst=True)
        return engine

    yield make
    for engine in opened:
        engine.dispose()


def write(msg, session):
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.attempt)})


def written(engine):
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.note)))


def test_idle_workers_keep_no_connection(wide, producer, start, make_engine):
    engine = make_engine(pool_size=2, pool_timeout=0.2)
    for partition in wide.partitions:
        producer.send(wide.name, {"n": partition}, partition=partition)

    start(wide, write, engine=engine, config=quick(retry=ONCE))

    wait_until_finished(wide)
    eventually(lambda: engine.pool.checkedout() == 0)
    assert written(engine) == ["1"] * 4
    assert dead_letters(wide) == []


def test_a_paused_worker_keeps_no_connection(topic, send, start, make_engine):
    engine = make_engine(pool_size=1)
    send(2)
    running: Any = None

    def pause(msg, session):
        running.consumer.pause()
        write(msg, session)

    running = start(topic, pause, engine=engine)
    eventually(lambda: running.consumer.is_paused)

    eventually(lambda: engine.pool.checkedout() == 0)


def test_a_partition_that_is_never_idle_leaves_a_connection_to_the_others(
    topics, name, producer, start, make_engine
):
    topic = topics.create(name, 2)
    others_turn = threading.Event()

    def busy(msg, session):
        if msg.partition == 1:
            others_turn.set()
        elif not others_turn.is_set():
            producer.send(topic.name, {"n": "next"}, partition=0)

    for partition in topic.partitions:
        producer.send(topic.name, {"n": "first"}, partition=partition)
    start(topic, busy, engine=make_engine(pool_size=1), config=quick(retry=ONCE))

    assert others_turn.wait(timeout=HANG_S)
    wait_until_finished(topic)
    assert dead_letters(topic) == []


def test_a_partition_that_is_acquired_while_no_connection_is_free_does_not_hold_up_the_leases(
    topics, topic, producer, start, make_engine
):
    engine = make_engine(pool_size=1)
    begun, go_on = threading.Event(), threading.Event()

    def hold(msg, session):
        write(msg, session)
        begun.set()
        assert go_on.wait(timeout=HANG_S)

    producer.send(topic.name, {"n": 0})
    running = start(topic, hold, engine=engine, inbox=Inbox(), config=quick())
    assert begun.wait(timeout=HANG_S)
    grown = topics.grow(topic.name, 2)
    Producer(topic.client).send(topic.name, {"n": 1}, partition=1)
    eventually(lambda: owners(grown) == [running.name] * 2)
    lease = topic.keys.lease(GROUP, 0)
    before = topic.client.hgetall(lease)

    eventually(lambda: int(topic.client.hget(lease, "expiresAtMs")) > int(before[b"expiresAtMs"]) + 1_000)

    assert topic.client.hget(lease, "epoch") == before[b"epoch"]
    go_on.set()
    wait_until_finished(grown)
    assert written(engine) == ["1", "1"]


def test_a_drain_that_waits_for_messages_keeps_no_connection(topic, send, make_engine):
    engine = make_engine(pool_size=1)
    send(1)
    checked_out = []

    def should_stop():
        checked_out.append(engine.pool.checkedout())
        return False

    limits = DrainLimits(max_messages=10, idle_ms=50, should_stop=should_stop)
    report = drain_partition(topic, 0, GROUP, write, engine, limits)

    assert (report.handled, report.stopped_by) == (1, "idle")
    assert checked_out[-1] == 0


def test_a_drain_counts_a_message_that_waited_for_its_connection_once(topic, send, make_engine):
    engine = make_engine(pool_size=1, pool_timeout=0.05)
    send(3)
    held = engine.connect()
    waits = []

    def free_after_some_tries():
        waits.append(1)
        if len(waits) == 12:
            held.close()
        return False

    limits = DrainLimits(max_messages=3, idle_ms=50, should_stop=free_after_some_tries)
    report = drain_partition(topic, 0, GROUP, write, engine, limits)

    assert (report.handled, report.stopped_by) == (3, "max_messages")
