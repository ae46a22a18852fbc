"""What the MQ tells Prometheus."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import REGISTRY

from conquiet.mq import DeadLetter, Message, Retry
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import GROUP, metric, quick, wait_until_finished


@pytest.fixture
def place(topic):
    return {"topic": topic.name, "partition": "0", "group": GROUP}


def by_number(msg):
    """0 succeeds, 1 is retried once, 2 is a dead letter."""
    if msg.payload["n"] == 1 and msg.attempt == 1:
        return Retry(delay_ms=20)
    return DeadLetter("no") if msg.payload["n"] == 2 else None


def test_messages_are_counted_by_what_became_of_them(topic, send, start, place):
    send(3)

    start(topic, by_number)
    wait_until_finished(topic)

    eventually(lambda: metric("conquiet_mq_settled_total", **place, result="ack") == 2)
    assert metric("conquiet_mq_settled_total", **place, result="retry") == 1
    assert metric("conquiet_mq_settled_total", **place, result="dead_letter") == 1
    assert metric("conquiet_mq_produced_total", topic=topic.name, partition="0") == 3
    assert metric("conquiet_mq_consumed_total", **place) == 4


def test_times_are_measured(topic, send, start, place):
    send(5)

    start(topic, lambda msg: None)
    wait_until_finished(topic)

    assert metric("conquiet_mq_handle_seconds_count", **place) == 5
    assert metric("conquiet_mq_end_to_end_seconds_count", **place) == 5
    eventually(lambda: metric("conquiet_mq_settle_seconds_count", **place) >= 1)


def test_owned_partitions_and_messages_in_flight_are_gauges_that_come_back_to_zero(topic, send, start, place):
    group = {"topic": topic.name, "group": GROUP}
    highest = []

    def look(msg):
        highest.append(metric("conquiet_mq_in_flight", **place))

    send(10)
    running = start(topic, look)
    wait_until_finished(topic)

    assert max(highest) == 10
    eventually(lambda: metric("conquiet_mq_in_flight", **place) == 0)
    eventually(lambda: metric("conquiet_mq_partitions_owned", **group) == 1)
    running.stop()
    assert metric("conquiet_mq_partitions_owned", **group) == 0


def test_leases_and_take_overs_are_counted(topic, send, start, place, client):
    send(2)
    client.xgroup_create(topic.keys.stream(0), GROUP, "0-0")
    client.xreadgroup(GROUP, "dead", {topic.keys.stream(0): ">"})

    start(topic, lambda msg: None, config=quick())
    wait_until_finished(topic)

    assert metric("conquiet_mq_claimed_total", **place) == 2
    assert metric("conquiet_mq_leases_acquired_total", **place) == 1


def test_pending_entries_that_the_stream_no_longer_has_are_counted_and_logged(
    topic, send, start, place, client, caplog
):
    first, _ = send(2)
    client.xgroup_create(topic.keys.stream(0), GROUP, "0-0")
    client.xreadgroup(GROUP, "dead", {topic.keys.stream(0): ">"})
    client.xdel(topic.keys.stream(0), first)

    start(topic, lambda msg: None)
    wait_until_finished(topic)

    assert metric("conquiet_mq_vanished_total", **place) == 1
    assert first in caplog.text


def test_labels_are_bounded(topic, send, start):
    send(1)
    start(topic, lambda msg: None)
    wait_until_finished(topic)

    labels = {
        label
        for family in REGISTRY.collect()
        if family.name.startswith("conquiet_mq_")
        for sample in family.samples
        for label in sample.labels
    }
    assert labels <= {"topic", "partition", "group", "result", "le"}


def test_consumers_of_one_group_in_one_process_share_their_gauges(wide, producer, start):
    group = {"topic": wide.name, "group": GROUP}
    go_on = threading.Event()
    producer.send_many(wide.name, [Message(payload={"n": n}, partition=n) for n in range(4)])

    def hang(msg):
        assert go_on.wait(timeout=HANG_S)

    config = {"handler_timeout_s": 0.05}
    first, second = (start(wide, hang, config=quick(**config)) for _ in range(2))

    eventually(lambda: metric("conquiet_mq_handlers_overdue", **group) == 4)
    go_on.set()
    eventually(lambda: sorted(len(each.consumer.owned) for each in (first, second)) == [2, 2])
    eventually(lambda: metric("conquiet_mq_partitions_owned", **group) == 4)
    first.stop()
    eventually(lambda: len(second.consumer.owned) == 4)
    eventually(lambda: metric("conquiet_mq_partitions_owned", **group) == 4)
    second.stop()
    assert metric("conquiet_mq_partitions_owned", **group) == 0
    assert metric("conquiet_mq_handlers_overdue", **group) == 0


def test_rare_events_are_counted_from_zero_on_so_that_their_first_is_an_increase(topic, send, start, place):
    send(1)
    start(topic, lambda msg: None)
    wait_until_finished(topic)

    rare = ("leases_lost", "fenced", "worker_failures", "database_unavailable", "vanished")
    samples = [REGISTRY.get_sample_value(f"conquiet_mq_{name}_total", place) for name in rare]
    samples.append(REGISTRY.get_sample_value("conquiet_mq_settled_total", place | {"result": "dead_letter"}))
    assert samples == [0] * 6
