"""The fixtures of the pytest plugin, and the clock of topics and streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conquiet import DrainLimits, Retry, drain, drain_stale
from conquiet.mq import MqMessage, Producer, drain_topic
from conquiet.testing import move_clock
from tests.testing.shop import bill, tables

ORDER = {"order_id": 1, "cents": 500}
AT_ONCE = DrainLimits(idle_ms=20)


def test_a_queue_and_a_database_of_the_tests_own(conquiet_queue, conquiet_database, conquiet_server):
    tables.create_all(conquiet_database)
    conquiet_queue.enqueue(ORDER)

    report = drain(conquiet_queue, bill, conquiet_database, DrainLimits(max_messages=1))

    assert report.handled == 1
    assert conquiet_server.is_running


def test_a_retry_of_a_topic_is_due_when_the_clock_has_moved(conquiet_topic):
    attempts = []

    def handle(msg):
        attempts.append(msg.attempt)
        return Retry(delay_ms=3_600_000) if msg.attempt == 1 else None

    Producer(conquiet_topic.client).send(conquiet_topic, {"n": 1})

    drain_topic(conquiet_topic, "test", handle, limits=AT_ONCE)
    drain_topic(conquiet_topic, "test", handle, limits=AT_ONCE)
    assert attempts == [1]
    move_clock(conquiet_topic, hours=1)
    drain_topic(conquiet_topic, "test", handle, limits=AT_ONCE)
    assert attempts == [1, 2]


def test_a_delayed_message_is_added_when_the_clock_has_moved(conquiet_topic):
    seen: list[MqMessage] = []
    Producer(conquiet_topic.client).send(conquiet_topic, {"n": 1}, delay_ms=60_000)

    drain_topic(conquiet_topic, "test", seen.append, limits=AT_ONCE)
    assert seen == []
    move_clock(conquiet_topic, seconds=60)
    drain_topic(conquiet_topic, "test", seen.append, limits=AT_ONCE)
    assert [msg.payload for msg in seen] == [{"n": 1}]


def test_pending_messages_are_stale_when_the_clock_has_moved(conquiet_queue, conquiet_database):
    tables.create_all(conquiet_database)
    conquiet_queue.enqueue(ORDER)
    [msg] = conquiet_queue.read(50)

    assert drain_stale(conquiet_queue, bill, conquiet_database).read == 0
    move_clock(conquiet_queue, minutes=2)
    assert conquiet_queue.claim_stale(60_000)[0].delivery_count == msg.delivery_count + 1


def test_the_clock_goes_forward_only(conquiet_queue):
    with pytest.raises(ValueError, match="forward only"):
        move_clock(conquiet_queue, seconds=0)


def test_the_plugin_costs_a_run_of_pytest_that_uses_nothing_of_it_no_import():
    code = (
        "import sys, conquiet.testing.pytest_plugin\n"
        "heavy = ('redis', 'sqlalchemy', 'pydantic', 'airflow', 'dagster')\n"
        "print([name for name in heavy if name in sys.modules])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"
