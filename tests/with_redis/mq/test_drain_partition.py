"""drain_partition: one partition, one owner, a bounded drain."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy import insert, select

from conquiet import DrainLimits, Inbox
from conquiet.mq import (
    ConsumerConfig,
    DeadLetters,
    LeaseLostError,
    MqAdmin,
    PartitionBusyError,
    RetryPolicy,
    TopicError,
    drain_partition,
)
from conquiet.mq.own.leases import LeaseStore
from tests.conftest import effects
from tests.eventually import eventually

GROUP = "billing"


def config(name: str = "try-1", **options) -> ConsumerConfig:
    return ConsumerConfig(consumer_name=name, **options)


def drain(topic, handler, engine=None, *, partition=0, **options):
    more = {name: options.pop(name) for name in ("inbox", "config") if name in options}
    limits = DrainLimits(**{"idle_ms": 20} | options)
    return drain_partition(topic, partition, GROUP, handler, engine, limits, **more)


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload)})


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def owner_of(client, topic) -> str | None:
    (partition,) = MqAdmin(client).owners(topic.name, GROUP).partitions
    return partition.owner


def pending(client, topic) -> int:
    (group,) = MqAdmin(client).groups(topic.name)
    return group.pending


def test_everything_is_handled_in_order_and_the_partition_is_free_again(topic, send, client, engine):
    ids = send(250)

    report = drain(topic, write_effect, engine)

    assert effect_ids(engine) == ids
    assert (report.handled, report.stopped_by) == (250, "idle")
    assert (report.first_id, report.last_id) == (ids[0], ids[-1])
    assert (owner_of(client, topic), pending(client, topic)) == (None, 0)


def test_it_stops_at_max_messages_and_the_next_drain_goes_on_in_order(topic, send, client, engine):
    ids = send(250)

    first = drain(topic, write_effect, engine, max_messages=120)
    assert effect_ids(engine) == ids[:120]
    second = drain(topic, write_effect, engine)

    assert (first.handled, first.stopped_by, second.handled) == (120, "max_messages", 130)
    assert effect_ids(engine) == ids
    assert pending(client, topic) == 0


def test_the_batch_size_of_the_limits_is_the_one_that_counts(topic, send, client):
    send(160)
    sizes = []

    drain(topic, lambda msg: sizes.append(pending(client, topic)), batch_size=150, max_messages=150)
    drain(topic, lambda msg: sizes.append(pending(client, topic)), batch_size=3, max_messages=3)

    assert (max(sizes[:150]), max(sizes[150:])) == (150, 3)


def test_handlers_run_in_the_calling_thread(topic, send):
    send(1)
    threads = []

    drain(topic, lambda msg: threads.append(threading.current_thread()))

    assert threads == [threading.current_thread()]


def test_a_partition_in_the_hands_of_another_is_busy_and_nothing_is_read(topic, send, client):
    send(1)
    LeaseStore(topic, GROUP).acquire(0, "somebody", 60_000)

    with pytest.raises(PartitionBusyError, match="partition 0") as busy:
        drain(topic, lambda msg: None)

    assert (busy.value.partition, busy.value.group) == (0, GROUP)
    assert owner_of(client, topic) == "somebody"


def test_the_lease_of_an_earlier_try_is_taken_at_once_and_that_one_can_settle_nothing(topic, send, client):
    ids = send(3)
    seen = []

    def replaced(msg):
        report = drain(
            topic, lambda inner: seen.append(inner.id), config=config("try-2", take_over_from=("try-1",))
        )
        assert report.handled == 3

    with pytest.raises(LeaseLostError):
        drain(topic, replaced, config=config("try-1"))

    assert seen == ids
    assert pending(client, topic) == 0


def test_a_second_drain_with_the_same_name_is_refused_while_the_first_one_runs(topic, send):
    ids = send(3)
    seen = []

    def again(msg):
        seen.append(msg.id)
        with pytest.raises(PartitionBusyError):
            drain(topic, lambda inner: seen.append(inner.id), config=config("try-1"))

    report = drain(topic, again, config=config("try-1"))

    assert (seen, report.handled) == (ids, 3)


def test_a_live_owner_that_is_not_named_is_not_replaced(topic, send):
    LeaseStore(topic, GROUP).acquire(0, "somebody", 60_000)

    with pytest.raises(PartitionBusyError):
        drain(topic, lambda msg: None, config=config("try-2", take_over_from=("try-1",)))


def test_what_a_killed_try_left_is_handled_first_by_the_next(topic, send, client, server_url):
    ids = send(5)
    script = (
        "import os, sys, redis\n"
        "from conquiet.mq import ConsumerConfig, Topics, drain_partition\n"
        "topic = Topics(redis.Redis.from_url(sys.argv[1])).open(sys.argv[2])\n"
        "def die(msg):\n"
        "    if msg.payload['n'] == 2: os.kill(os.getpid(), 9)\n"
        "drain_partition(topic, 0, 'billing', die, config=ConsumerConfig(consumer_name='try-1'))\n"
    )
    died = subprocess.run([sys.executable, "-c", script, server_url, topic.name], check=False)
    assert died.returncode == -9
    seen = []

    report = drain(topic, lambda msg: seen.append(msg.id), config=config("try-2", take_over_from=("try-1",)))

    assert seen[-3:] == ids[2:]
    assert report.handled == len(seen)
    assert pending(client, topic) == 0


def test_a_failing_message_waits_for_its_retry_and_never_ends_the_drain(topic, send, client, engine):
    ids = send(3)

    def fail_one(msg, session):
        if msg.payload["n"] == 1:
            raise RuntimeError("no")
        write_effect(msg, session)

    report = drain(
        topic, fail_one, engine, config=config(retry=RetryPolicy(max_attempts=3, base_delay_ms=60_000))
    )

    assert (report.handled, report.retried, report.dead_lettered) == (2, 1, 0)
    assert effect_ids(engine) == [ids[0], ids[2]]
    assert pending(client, topic) == 1


def test_a_message_out_of_attempts_is_a_dead_letter(topic, send):
    send(1)

    def fail(msg):
        raise RuntimeError("no")

    report = drain(topic, fail, config=config(retry=RetryPolicy(max_attempts=1)))

    assert report.dead_lettered == 1
    assert len(DeadLetters(topic).list().letters) == 1


def test_enough_failures_end_the_drain(topic, send):
    send(10)

    def fail(msg):
        raise RuntimeError("no")

    report = drain(topic, fail, max_failures=2)

    assert (report.retried, report.stopped_by) == (2, "max_failures")


def test_should_stop_is_asked_between_messages(topic, send, client):
    send(10)
    seen = []

    report = drain(topic, lambda msg: seen.append(msg.id), should_stop=lambda: len(seen) == 3)

    assert (len(seen), report.handled, report.stopped_by) == (3, 3, "stop")
    assert report.handed_back == 7


def test_no_message_is_begun_after_max_duration(topic, send):
    send(10)
    seen = []

    def slow(msg):
        seen.append(msg.id)
        time.sleep(0.12)

    report = drain(topic, slow, max_duration_s=0.1)

    assert (len(seen), report.stopped_by) == (1, "max_duration")


def test_a_drain_reads_what_is_there_before_it_is_idle(topic, send):
    for number in range(20):
        send(1)
        assert drain(topic, lambda msg: None, idle_ms=1).handled == 1, number


@pytest.mark.parametrize("inbox", [Inbox(), True])
def test_what_the_inbox_has_is_skipped_and_counted(topic, send, engine, inbox):
    send(2)
    drain(topic, write_effect, engine, inbox=inbox)
    client_reset = MqAdmin(topic.client).reset_group(topic.name, GROUP, "start", dry_run=False)
    assert client_reset

    report = drain(topic, write_effect, engine, inbox=inbox)

    assert (report.handled, report.skipped, len(effect_ids(engine))) == (0, 2, 2)


def test_a_handler_that_ends_the_process_leaves_its_message_and_no_lease(topic, send, client, engine):
    ids = send(3)

    def leave(msg, session):
        write_effect(msg, session)
        if msg.id == ids[1]:
            raise SystemExit(1)

    with pytest.raises(SystemExit):
        drain(topic, leave, engine)

    assert effect_ids(engine) == ids[:1]
    assert owner_of(client, topic) is None
    drain(topic, write_effect, engine)
    assert effect_ids(engine) == ids
    assert pending(client, topic) == 0


def test_a_long_handler_keeps_its_lease(topic, send, client):
    send(1)
    ttl_ms = 300
    owners = []

    def long(msg):
        begun = time.monotonic()
        eventually(lambda: time.monotonic() - begun > 3 * ttl_ms / 1000)
        owners.append(owner_of(client, topic))

    report = drain(topic, long, config=config(lease_ttl_ms=ttl_ms))

    assert (owners, report.handled) == (["try-1"], 1)


def test_a_delayed_message_is_moved_and_handled(topic, producer):
    producer.send(topic.name, {"n": 1}, delay_ms=1)
    seen = []

    def drained():
        drain(topic, lambda msg: seen.append(msg.payload))
        return seen

    assert eventually(drained) == [{"n": 1}]


def test_a_partition_that_is_not_there_is_refused(topic):
    with pytest.raises(TopicError, match="no partition 7"):
        drain(topic, lambda msg: None, partition=7)
