"""The most partitions and the most handlers of a consumer, and a stop that does not wait for a read."""

from __future__ import annotations

import logging
import signal
import threading
import time

import pytest

from conquiet.mq import Message, MqAdmin, PartitionConsumer, Topics
from conquiet.mq.own.waiting import Waiting
from conquiet.operations import topic_facts
from conquiet.operations.checks import check_group
from conquiet.queue import open_client
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import GROUP, Seen, owners, quick, wait_until_finished


def test_a_consumer_owns_no_more_partitions_than_it_may_and_the_others_own_the_rest(wide, start, producer):
    limited = start(wide, Seen(), config=quick(max_partitions=1))
    eventually(lambda: len(limited.consumer.owned) == 1)
    seen = Seen()
    other = start(wide, seen)
    eventually(lambda: len(other.consumer.owned) == 3)

    assert len(limited.consumer.owned) == 1
    assert None not in owners(wide)
    members = {
        member.name: member.max_partitions for member in MqAdmin(wide.client).owners(wide, GROUP).members
    }
    assert members == {limited.name: 1, other.name: None}

    other.stop()
    eventually(lambda: owners(wide).count(None) == 3)
    assert len(limited.consumer.owned) == 1


def test_partitions_that_nobody_may_own_are_logged_and_found_by_the_doctor(wide, start, caplog):
    caplog.set_level(logging.WARNING)
    limited = start(wide, Seen(), config=quick(max_partitions=1))
    eventually(lambda: len(limited.consumer.owned) == 1)

    eventually(lambda: "3 partitions of topic" in caplog.text)
    facts = topic_facts(wide.client, wide)
    findings = [finding for group in facts.groups for finding in check_group(facts, group)]
    assert [finding.check for finding in findings] == ["max-partitions"]
    assert "own at most 1 of 4 partitions" in findings[0].text

    start(wide, Seen())
    eventually(lambda: None not in owners(wide))
    facts = topic_facts(wide.client, wide)
    assert not [finding for group in facts.groups for finding in check_group(facts, group)]


def test_no_more_handlers_run_at_once_than_the_consumer_may_run(wide, start, producer):
    producer.send_many(wide.name, [Message(payload={"n": n}, partition=n % 4) for n in range(80)])
    lock, seen = threading.Lock(), []
    inside = most = 0

    def handler(msg):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        # The first one waits for a second: on a slow machine it might be alone.
        eventually(lambda: most >= 2)
        time.sleep(0.002)
        with lock:
            inside -= 1
            seen.append((msg.partition, msg.payload["n"]))

    start(wide, handler, config=quick(max_handlers=2))
    wait_until_finished(wide)

    assert most == 2
    for partition in wide.partitions:
        assert [n for number, n in seen if number == partition] == list(range(partition, 80, 4))


def test_a_busy_partition_does_not_keep_the_others_from_their_turn(wide, start, producer):
    producer.send_many(wide.name, [Message(payload={"n": n}, partition=0) for n in range(300)])
    seen = Seen()

    def slow(msg):
        time.sleep(0.001)
        seen(msg)

    running = start(wide, slow, config=quick(max_handlers=1))
    eventually(lambda: len(running.consumer.owned) == 4 and len(seen) > 20)
    producer.send_many(wide.name, [Message(payload={"n": n}, partition=1 + n) for n in range(3)])
    wait_until_finished(wide)

    # They come while partition 0 has still many to go.
    positions = [number for number, msg in enumerate(seen) if msg.partition]
    assert len(positions) == 3
    assert max(positions) < 302


def test_a_consumer_is_stopped_while_its_partitions_wait_for_their_turn(wide, start, producer):
    producer.send_many(wide.name, [Message(payload={"n": n}, partition=n % 4) for n in range(8)])
    begun, goes_on = threading.Event(), threading.Event()

    def handler(msg):
        begun.set()
        goes_on.wait(HANG_S)

    running = start(wide, handler, config=quick(max_handlers=1))
    assert begun.wait(HANG_S)
    eventually(lambda: running.consumer.in_flight == 8)
    running.consumer.stop()
    # The three that wait end, and hand back what they have not begun.
    eventually(lambda: len(running.consumer.owned) == 1)
    goes_on.set()
    running.join()

    counts = [
        row["times_delivered"]
        for partition in wide.partitions
        for row in wide.client.xpending_range(wide.keys.stream(partition), GROUP, "-", "+", 10)
    ]
    assert counts == [0] * 7


@pytest.mark.parametrize("field", ["max_partitions", "max_handlers"])
@pytest.mark.parametrize("value", [0, -1, True, "2"])
def test_a_limit_that_is_no_number_above_zero_is_refused(field, value):
    with pytest.raises((TypeError, ValueError), match=field):
        quick(**{field: value})


def test_a_read_that_waits_is_cut_and_none_waits_after_that(topic, server_url, client):
    with open_client(server_url, socket_timeout=None) as patient:
        opened = Topics(patient).open(topic.name)
        waiting = Waiting(opened, topic.keys.stream(0), GROUP)
        thread = threading.Thread(target=waiting.for_new, args=("0-0", 3_600_000), daemon=True)
        thread.start()
        eventually(lambda: any(one["flags"] == "b" for one in client.client_list()))
        waiting.wake()
        thread.join(HANG_S)
        assert not thread.is_alive()

        waiting.for_new("0-0", 3_600_000)
        waiting.sleep(3_600_000)
        waiting.wake()
        # The client is as good as before.
        assert patient.ping()


def test_a_wait_ends_by_itself_and_with_a_message(topic, send):
    waiting = Waiting(topic, topic.keys.stream(0), GROUP)
    waiting.for_new("0-0", 1)
    waiting.sleep(1)
    send(1)
    waiting.for_new("0-0", 3_600_000)


def test_a_stop_from_a_signal_handler_ends_an_idle_consumer(wide):
    consumer = PartitionConsumer(wide, GROUP, print, config=quick(lease_ttl_ms=60_000))
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())

    def send_signal():
        eventually(lambda: len(consumer.owned) == 4)
        signal.raise_signal(signal.SIGUSR1)

    thread = threading.Thread(target=send_signal)
    try:
        thread.start()
        consumer.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    assert owners(wide) == [None] * 4


def test_a_stop_breaks_no_call_of_another_consumer_on_the_same_client(wide, topic, start, send):
    seen = Seen()
    busy = start(topic, seen)
    for number in range(20):
        with PartitionConsumer(wide, GROUP, print, config=quick(block_ms=5)) as idle:
            eventually(lambda: len(idle.owned) == 4)
            send(50, start=number * 50)
    wait_until_finished(topic)

    assert seen.numbers() == list(range(1_000))
    assert busy.is_running
    assert busy.error is None
