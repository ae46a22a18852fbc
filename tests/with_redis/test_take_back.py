"""drain(take_over_from=…): a second try first handles what the first one left."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from conquiet import DrainError, DrainLimits, drain
from tests.conftest import effects

GROUP = "billing"


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.delivery_count)})


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def leave_pending(make_queue, consumer: str, count: int) -> list[str]:
    return [msg.id for msg in make_queue(consumer).read(50, count=count)]


def test_what_an_earlier_try_left_is_handled_first_and_its_name_is_forgotten(make_queue, engine):
    ids = make_queue("try-1").enqueue_many([{"n": n} for n in range(6)])
    leave_pending(make_queue, "try-1", 2)
    leave_pending(make_queue, "try-2", 2)
    queue = make_queue("try-3")

    report = drain(
        queue,
        write_effect,
        engine,
        DrainLimits(max_messages=100, idle_ms=10),
        take_over_from=["try-1", "try-2"],
    )

    assert effect_ids(engine) == ids
    assert (report.handled, queue.backlog_stats().pending, queue.consumer_names()) == (6, 0, [])


def test_nothing_is_taken_from_a_consumer_that_was_not_named(make_queue, engine):
    make_queue("alive").enqueue_many([{"n": n} for n in range(4)])
    held = leave_pending(make_queue, "alive", 2)
    left = leave_pending(make_queue, "try-1", 2)
    queue = make_queue("try-2")

    drain(queue, write_effect, engine, DrainLimits(max_messages=100, idle_ms=10), take_over_from=["try-1"])

    assert effect_ids(engine) == left
    assert {c.name: c.pending for c in queue.backlog_stats().consumers}["alive"] == len(held)


def test_what_fails_after_it_was_taken_back_stays_pending_with_its_count(make_queue, engine, client, stream):
    make_queue("try-1").enqueue_many([{"n": n} for n in range(3)])
    left = leave_pending(make_queue, "try-1", 3)

    def fail_one(msg, session):
        if msg.id == left[1]:
            raise RuntimeError("no")
        write_effect(msg, session)

    queue = make_queue("try-2")
    with pytest.raises(DrainError):
        drain(
            queue,
            fail_one,
            engine,
            DrainLimits(max_messages=100, idle_ms=10, on_error="continue"),
            take_over_from=["try-1"],
        )

    (row,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert (row["message_id"].decode(), row["consumer"], row["times_delivered"]) == (left[1], b"try-2", 2)


def test_a_limit_that_is_reached_leaves_the_rest_with_the_earlier_try(make_queue, engine):
    make_queue("try-1").enqueue_many([{"n": n} for n in range(30)])
    left = leave_pending(make_queue, "try-1", 30)
    queue = make_queue("try-2")

    drain(queue, write_effect, engine, DrainLimits(max_messages=12, idle_ms=10), take_over_from=["try-1"])

    assert effect_ids(engine) == left[:12]
    assert {c.name: c.pending for c in queue.backlog_stats().consumers} == {"try-1": 18}


def test_an_entry_that_is_gone_from_the_stream_ends_nothing(make_queue, engine, client, stream):
    make_queue("try-1").enqueue_many([{"n": n} for n in range(3)])
    left = leave_pending(make_queue, "try-1", 3)
    client.xdel(stream, left[1])

    drain(
        make_queue("try-2"),
        write_effect,
        engine,
        DrainLimits(max_messages=100, idle_ms=10),
        take_over_from=["try-1"],
    )

    assert effect_ids(engine) == [left[0], left[2]]


def test_a_malformed_entry_that_was_left_is_told(make_queue, engine, client, stream):
    queue = make_queue("try-2")
    bad = client.xadd(stream, {"other": "x"}).decode()
    client.xreadgroup(GROUP, "try-1", {stream: ">"})

    with pytest.raises(DrainError) as told:
        drain(
            queue, write_effect, engine, DrainLimits(max_messages=100, idle_ms=10), take_over_from=["try-1"]
        )

    assert [failure.id for failure in told.value.failures] == [bad]


@pytest.mark.parametrize("names", ["try-1", ["try-1", "worker-1"]])
def test_a_string_or_the_own_name_is_refused(queue, engine, names):
    with pytest.raises(ValueError, match="take_over_from"):
        drain(queue, write_effect, engine, DrainLimits(max_messages=1, idle_ms=10), take_over_from=names)


def test_a_consumer_with_something_pending_is_not_removed(make_queue):
    queue = make_queue("worker-1")
    queue.enqueue({"n": 1})
    leave_pending(make_queue, "worker-2", 1)

    assert not queue.remove_consumer("worker-2")

    assert queue.consumer_names() == ["worker-2"]
    assert queue.backlog_stats().pending == 1


def test_a_consumer_with_nothing_pending_is_removed_and_one_that_never_was_too(make_queue):
    queue = make_queue("worker-1")
    queue.enqueue({"n": 1})
    for msg in queue.read(50):
        queue.ack(msg)

    assert queue.remove_consumer("worker-1")
    assert queue.remove_consumer("nobody")

    assert queue.consumer_names() == []


def test_what_one_drain_handed_back_the_next_one_takes_before_new_messages(make_queue, engine):
    ids = make_queue().enqueue_many([{"n": n} for n in range(20)])
    done = []

    def count(msg, session):
        write_effect(msg, session)
        done.append(msg.id)

    first = drain(
        make_queue("run-1"),
        count,
        engine,
        DrainLimits(max_messages=100, idle_ms=10, should_stop=lambda: len(done) == 3),
    )
    second = drain(make_queue("run-2"), count, engine, DrainLimits(max_messages=100, idle_ms=10))

    assert (first.handled, first.handed_back > 0, second.handled) == (3, True, 17)
    assert effect_ids(engine) == ids


def test_what_another_consumer_holds_is_not_taken_as_handed_back(make_queue, engine):
    make_queue().enqueue_many([{"n": n} for n in range(4)])
    leave_pending(make_queue, "alive", 4)

    report = drain(make_queue("run-2"), write_effect, engine, DrainLimits(max_messages=100, idle_ms=10))

    assert (report.read, effect_ids(engine)) == (0, [])
