"""What cannot be worked on is tried again in bounded steps, is seen, and in the end is raised."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from conquiet import DrainLimits
from conquiet.errors import QueueError
from conquiet.mq import RetryPolicy, drain_partition
from tests.conftest import effects
from tests.eventually import eventually
from tests.services import open_engine
from tests.with_redis.mq.consuming import (
    GROUP,
    Seen,
    dead_letters,
    metric,
    owners,
    pending,
    quick,
    wait_until_finished,
)


def place(topic, partition=0):
    return {"topic": topic.name, "partition": str(partition), "group": GROUP}


def test_messages_wait_for_a_database_that_is_not_there_yet(topic, send, start, tmp_path):
    ids = send(3)
    engine = open_engine(f"sqlite:///{tmp_path}/later/effects.db")

    def write(msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.attempt)})

    # A lease that no busy machine lets run out: whoever takes over cannot know what was begun.
    config = quick(retry=RetryPolicy(max_attempts=1), lease_ttl_ms=60_000)
    start(topic, write, engine=engine, config=config)
    eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place(topic)) >= 3)
    there = open_engine(f"sqlite:///{tmp_path}/effects.db")
    effects.create(there)
    there.dispose()
    (tmp_path / "later").symlink_to(tmp_path)

    wait_until_finished(topic)
    with engine.connect() as connection:
        rows = connection.execute(select(effects.c.entry_id, effects.c.note)).all()
    assert [tuple(row) for row in rows] == [(entry_id, "1") for entry_id in ids]
    assert dead_letters(topic) == []


def test_a_partition_that_cannot_be_worked_on_does_not_stop_the_others_and_is_raised_in_the_end(
    wide, producer, start, client
):
    client.set(wide.keys.stream(1), "not a stream")
    for partition in (0, 2, 3):
        producer.send(wide.name, {"n": partition}, partition=partition)
    seen = Seen()

    running = start(wide, seen, config=quick(max_outage_s=1.5))

    eventually(lambda: sorted(seen.numbers()) == [0, 2, 3])
    assert running.is_running
    running.join()
    assert isinstance(running.error, QueueError)
    assert "WRONGTYPE" in str(running.error)
    # Bounded: tried again at growing distances, and not with every look around.
    assert 5 <= metric("conquiet_mq_worker_failures_total", **place(wide, 1)) <= 8


def test_a_worker_that_may_not_settle_is_raised_in_the_end(topic, send, start, client, server_url):
    send(2)
    client.execute_command("ACL", "SETUSER", "no-acks", "on", ">secret", "~*", "&*", "+@all", "-xack")
    url = server_url.replace("redis://", "redis://no-acks:secret@")
    seen = Seen()

    with type(client).from_url(url) as restricted:
        limited = type(topic)(client=restricted, name=topic.name, partition_count=1, layout=topic.layout)
        running = start(limited, seen, config=quick(max_outage_s=1.0, retry=RetryPolicy(max_attempts=99)))
        running.join()

    assert isinstance(running.error, QueueError)
    assert "in script: User no-acks" in str(running.error) or "The user executing" in str(running.error)
    assert len(pending(topic)) == 2
    client.execute_command("ACL", "DELUSER", "no-acks")


@pytest.mark.parametrize("leaving", [SystemExit("done"), KeyboardInterrupt()])
def test_a_handler_that_exits_uses_up_no_attempt(topic, send, leaving):
    send(1)
    attempts = []

    def leave(msg):
        attempts.append(msg.attempt)
        if len(attempts) <= 3:
            raise leaving

    config = quick(retry=RetryPolicy(max_attempts=1))
    for _ in range(3):
        with pytest.raises(type(leaving)):
            drain_partition(topic, 0, GROUP, leave, limits=DrainLimits(idle_ms=20), config=config)
    report = drain_partition(topic, 0, GROUP, leave, limits=DrainLimits(idle_ms=20), config=config)

    assert (report.handled, report.dead_lettered) == (1, 0)
    assert attempts == [1, 1, 1, 1]


@pytest.mark.parametrize("leaving", [SystemExit("done"), KeyboardInterrupt()])
def test_a_handler_that_exits_leaves_no_lease_and_its_message_pending(topic, send, start, leaving):
    first, second, third = send(3)
    seen = Seen()

    def leave(msg):
        if msg.id == second:
            raise leaving
        seen(msg)

    running = start(topic, leave, config=quick(lease_ttl_ms=60_000))
    running.join()

    assert running.error is leaving
    assert owners(topic) == [None]
    # The first is settled; of the others, the second was no attempt, although it was begun.
    assert {entry_id: count for entry_id, (_, count) in pending(topic).items()} == {second: 0, third: 0}
    start(topic, seen, config=quick(lease_ttl_ms=60_000))
    wait_until_finished(topic)
    assert seen.ids == [first, second, third]
