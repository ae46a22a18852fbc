"""Heartbeats of drains: two never share a name, a dead one is replaced, and no name stays behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from conquiet import (
    ConsumerBusyError,
    DrainError,
    DrainLimits,
    Inbox,
    QueueConfig,
    QueueError,
    drain,
    drain_stale,
)
from conquiet.queue.connection import key_beside
from tests.conftest import effects
from tests.eventually import eventually
from tests.reports import report_of

GROUP = "billing"
SHORT = DrainLimits(max_messages=100, idle_ms=10)

#: Reads everything under its name, says so, and waits to be killed.
WORKER = """
import sys, time
from sqlalchemy import create_engine
from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain
url, stream, consumer, idle_ms = sys.argv[1:]
config = QueueConfig(stream, "billing", consumer, claim_idle_ms=int(idle_ms))
def wait(msg, session):
    print("handling", flush=True)
    time.sleep(600)
queue, engine = RedisStreamsQueue.from_url(url, config), create_engine("sqlite://")
drain(queue, wait, engine, DrainLimits(max_messages=100))
"""


@pytest.fixture
def start_drain(server_url, stream):
    """Starts a drain in a process of its own; it is in its first handler when this returns."""
    processes = []

    def start(consumer: str, claim_idle_ms: int = 60_000) -> subprocess.Popen:
        command = [sys.executable, "-c", WORKER, server_url, stream, consumer, str(claim_idle_ms)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "handling\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.delivery_count)})


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def drains_of(client, stream) -> dict[bytes, bytes]:
    return client.hgetall(key_beside(stream, f"drains:{GROUP}"))


def kill(process: subprocess.Popen) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("drain_again", [drain, drain_stale])
def test_a_second_drain_under_the_name_of_a_live_one_is_refused(make_queue, engine, start_drain, drain_again):
    queue = make_queue("worker")
    queue.enqueue_many([{"n": n} for n in range(5)])
    start_drain("worker")

    with pytest.raises(ConsumerBusyError, match="consumer 'worker' of group 'billing' is draining stream"):
        drain_again(queue, write_effect, engine, SHORT)

    assert effect_ids(engine) == []
    assert queue.backlog_stats().pending == 5


def test_two_threads_cannot_drain_under_one_name(make_queue, engine):
    queue, other = make_queue("worker"), make_queue("worker")
    queue.enqueue({"n": 1})
    refused = []

    def drain_in_the_middle(_msg, _session) -> None:
        def second() -> None:
            try:
                drain(other, write_effect, engine, SHORT)
            except ConsumerBusyError as error:
                refused.append(error)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    report = drain(queue, drain_in_the_middle, engine, SHORT)

    assert (report.handled, len(refused), effect_ids(engine)) == (1, 1, [])


def test_a_killed_drain_is_replaced_at_once_under_its_own_name_on_the_same_machine(
    make_queue, engine, start_drain
):
    queue = make_queue("worker")
    ids = queue.enqueue_many([{"n": n} for n in range(5)])
    kill(start_drain("worker"))

    drain(queue, write_effect, engine, SHORT)

    assert effect_ids(engine) == ids


def test_a_drain_takes_over_what_a_dead_one_left_under_another_name(
    make_queue, engine, start_drain, client, stream
):
    queue = make_queue("pod-2")
    ids = queue.enqueue_many([{"n": n} for n in range(5)])
    kill(start_drain("pod-1", claim_idle_ms=300))
    eventually(lambda: has_expired(client, stream, b"pod-1"))

    report = drain(queue, write_effect, engine, SHORT)

    assert (effect_ids(engine), report.pending_elsewhere) == (ids, 0)
    assert (queue.consumer_names(), drains_of(client, stream)) == ([], {})


def test_the_take_over_can_be_switched_off_and_the_report_tells_what_is_pending_elsewhere(
    make_queue, engine, start_drain, client, stream, caplog
):
    queue = make_queue("pod-2")
    queue.enqueue_many([{"n": n} for n in range(5)])
    kill(start_drain("pod-1", claim_idle_ms=300))
    eventually(lambda: has_expired(client, stream, b"pod-1"))

    with caplog.at_level(logging.INFO, logger="conquiet"):
        report = drain(
            queue, write_effect, engine, DrainLimits(max_messages=100, idle_ms=10, take_over_dead=False)
        )

    assert (report.read, report.pending_elsewhere) == (0, 5)
    assert report.elsewhere_idle_ms >= 300
    assert "5 entries of stream" in caplog.text
    assert "pending at other consumers" in caplog.text


def test_nothing_is_taken_from_a_drain_that_lives_however_long_its_handler_runs(
    make_queue, engine, start_drain, client, stream
):
    queue = make_queue("pod-2")
    queue.enqueue_many([{"n": n} for n in range(5)])
    start_drain("pod-1", claim_idle_ms=600)
    first_end = expires_at(client, stream, b"pod-1")
    # As long after its start as without a heartbeat it would count as dead.
    eventually(lambda: expires_at(client, stream, b"pod-1") > first_end + 600)

    report = drain(queue, write_effect, engine, SHORT)

    assert (report.read, report.pending_elsewhere) == (0, 5)


def test_a_name_with_nothing_pending_is_gone_when_its_drain_ends(make_queue, engine, client, stream):
    for number in range(3):
        queue = make_queue(f"run-{number}")
        queue.enqueue({"n": number})
        drain(queue, write_effect, engine, SHORT)
        drain_stale(queue, write_effect, engine, SHORT)

    assert (make_queue("look").consumer_names(), drains_of(client, stream)) == ([], {})


def test_a_name_with_failed_messages_stays_until_they_are_handled(make_queue, engine, client, stream):
    def fail(_msg, _session) -> None:
        raise OSError("broken")

    make_queue("run-1").enqueue({"n": 1})
    with pytest.raises(DrainError):
        drain(make_queue("run-1"), fail, engine, SHORT)
    assert make_queue("look").consumer_names() == ["run-1"]

    # Not dead, only ended: its failed messages are not taken before they are stale.
    assert drain(make_queue("run-2"), write_effect, engine, SHORT).read == 0
    drain_stale(make_queue("run-3"), write_effect, engine, SHORT, min_idle_ms=0)
    drain(make_queue("run-4"), write_effect, engine, SHORT)

    assert (make_queue("look").consumer_names(), drains_of(client, stream)) == ([], {})


def test_drains_of_one_name_one_after_the_other_are_never_refused(make_queue, engine):
    queue = make_queue("worker")
    for number in range(20):
        queue.enqueue({"n": number})
        assert drain(queue, write_effect, engine, SHORT).handled == 1


def test_a_drain_that_was_taken_for_dead_goes_on_and_its_successor_has_the_name(
    make_queue, engine, client, stream, caplog
):
    config = QueueConfig(stream, GROUP, "worker", claim_idle_ms=150)
    queue = type(make_queue("worker"))(client, config)
    queue.enqueue({"n": 1})
    key = key_beside(stream, f"drains:{GROUP}")

    def be_replaced(msg, session) -> None:
        client.hset(key, "worker", "99999999999999 another elsewhere:1:1:1")
        eventually(lambda: "taken for dead" in caplog.text)
        write_effect(msg, session)

    report = drain(queue, be_replaced, engine, SHORT, inbox=Inbox())

    assert report.handled == 1
    assert drains_of(client, stream)[b"worker"].endswith(b"another elsewhere:1:1:1")


def test_a_drain_that_was_frozen_and_replaced_begins_no_other_message(make_queue, engine, client, stream):
    queue = type(make_queue("worker"))(client, QueueConfig(stream, GROUP, "worker", claim_idle_ms=100))
    first, second = queue.enqueue_many([{"n": 1}, {"n": 2}])

    def freeze(msg, session) -> None:
        write_effect(msg, session)
        record = "99999999999999 another elsewhere:1:1:1"
        client.hset(key_beside(stream, f"drains:{GROUP}"), "worker", record)
        time.sleep(0.06)

    with pytest.raises(ConsumerBusyError) as caught:
        drain(queue, freeze, engine, SHORT)

    report = report_of(caught.value)
    assert (report.handled, report.claimed_by_others, report.handed_back) == (1, 1, 0)
    assert effect_ids(engine) == [first]
    (left,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert (left["message_id"].decode(), left["times_delivered"]) == (second, 1)


def test_a_name_that_is_alive_again_when_its_turn_comes_is_left_alone(make_queue, engine, client, stream):
    """It was dead when this drain began, and another drain began under it meanwhile."""
    queue = make_queue("pod-2")
    first, second = queue.enqueue_many([{"n": 1}, {"n": 2}])
    queue.read(50)
    make_queue("pod-1").read(50)
    key = key_beside(stream, f"drains:{GROUP}")
    client.hset(key, "pod-1", "1 dead -")
    alive = "99999999999999 another elsewhere:1:1:1"

    def begin_again(msg, session) -> None:
        write_effect(msg, session)
        client.hset(key, "pod-1", alive)

    report = drain(queue, begin_again, engine, SHORT)

    assert (effect_ids(engine), report.pending_elsewhere) == ([first], 1)
    assert drains_of(client, stream) == {b"pod-1": alive.encode()}
    (left,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert (left["message_id"].decode(), left["consumer"], left["times_delivered"]) == (second, b"pod-1", 1)


def test_what_a_drain_has_pending_without_knowing_it_is_taken_over_by_the_next_one(
    make_queue, engine, stream
):
    """The reply of a read was lost: the messages are pending under the name, and the drain never saw them."""
    queue = make_queue("task-1")
    ids = queue.enqueue_many([{"n": n} for n in range(3)])

    def lose_a_reply(msg, session) -> None:
        make_queue("task-1").read(50, count=3)
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        drain(queue, lose_a_reply, engine, DrainLimits(on_error="raise", batch_size=1))
    report = drain(make_queue("task-2"), write_effect, engine, SHORT)

    assert (sorted(effect_ids(engine)), report.pending_elsewhere) == (ids, 0)


def test_a_killed_drain_that_nobody_has_waited_for_is_dead(make_queue, engine, start_drain):
    queue = make_queue("worker")
    ids = queue.enqueue_many([{"n": n} for n in range(3)])
    process = start_drain("worker")
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")

    drain(queue, write_effect, engine, SHORT)

    assert effect_ids(engine) == ids


def test_a_heartbeat_whose_thread_cannot_be_started_is_tried_again(
    make_queue, engine, client, stream, monkeypatch
):
    queue = type(make_queue("worker"))(client, QueueConfig(stream, GROUP, "worker", claim_idle_ms=600))
    queue.enqueue({"n": 1})
    refused: list[threading.Thread] = []
    real = threading.Thread.start

    def start(thread) -> None:
        if thread.name == "conquiet-heartbeat-worker" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)

    def wait(msg, session) -> None:
        first_end = expires_at(client, stream, b"worker")
        eventually(lambda: expires_at(client, stream, b"worker") > first_end)
        write_effect(msg, session)

    assert drain(queue, wait, engine, SHORT).handled == 1
    assert len(refused) == 1


def test_a_drain_whose_group_was_deleted_with_failed_messages_can_begin_again(
    make_queue, engine, client, stream
):
    client.hset(key_beside(stream, f"drains:{GROUP}"), "gone", "0 ended -")
    queue = make_queue("worker")
    client.xgroup_destroy(stream, GROUP)

    with pytest.raises(QueueError, match="NOGROUP"):
        drain(queue, write_effect, engine, SHORT)

    assert drains_of(client, stream) == {}


def test_records_of_a_later_version_and_garbage_do_not_stop_a_drain(make_queue, engine, client, stream):
    records = {b"\xff\xfe": b"\xff", "later": "1 a b and more"}
    client.hset(key_beside(stream, f"drains:{GROUP}"), mapping=records)
    queue = make_queue("worker")
    queue.enqueue({"n": 1})

    assert drain(queue, write_effect, engine, SHORT).handled == 1


def expires_at(client, stream: str, consumer: bytes) -> int:
    return int(drains_of(client, stream)[consumer].split()[0])


def has_expired(client, stream: str, consumer: bytes) -> bool:
    seconds, microseconds = client.time()
    return expires_at(client, stream, consumer) <= seconds * 1000 + microseconds // 1000


@pytest.mark.parametrize("drain_again", [drain, drain_stale])
def test_the_name_of_a_dead_drain_with_nothing_pending_is_gone_although_nothing_is_taken_over(
    make_queue, client, stream, engine, drain_again
):
    queue = make_queue("worker")
    client.xgroup_createconsumer(stream, GROUP, "killed")
    client.hset(key_beside(stream, f"drains:{GROUP}"), "killed", "1 instance process 1000")

    drain_again(queue, write_effect, engine, DrainLimits(idle_ms=10, take_over_dead=False))

    assert queue.consumer_names() == []
    assert drains_of(client, stream) == {}


def test_a_dead_drain_is_replaced_although_the_servers_clock_was_set_back(make_queue, client, stream, engine):
    queue = make_queue("worker")
    queue.enqueue({"n": 1})
    expires_ms = int(time.time() * 1000) + 3_600_000
    client.hset(key_beside(stream, f"drains:{GROUP}"), "worker", f"{expires_ms} other elsewhere 100")

    def is_drained() -> bool:
        try:
            return drain(queue, write_effect, engine, SHORT).handled == 1
        except ConsumerBusyError:
            return False

    assert not is_drained()
    eventually(is_drained)
