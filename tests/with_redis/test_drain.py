"""drain: up to N messages, a transaction and an ack for each, nothing lost on the way out."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

import pytest
from sqlalchemy import insert, select

from conquiet import (
    ConsumerBusyError,
    DbError,
    DrainError,
    DrainLimits,
    Inbox,
    MalformedEntryError,
    QueueError,
    drain,
)
from tests.conftest import effects
from tests.eventually import HANG_S
from tests.reports import report_of

GROUP = "billing"


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload.get("n"))})


def fail_on(*bad: int):
    def handler(msg, session):
        write_effect(msg, session)
        if msg.payload["n"] in bad:
            raise ValueError(f"order {msg.payload['n']}")

    return handler


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def pending(client, stream) -> dict[str, tuple[bytes, int, int]]:
    """Entry id to consumer, delivery count and idle time."""
    return {
        row["message_id"].decode(): (row["consumer"], row["times_delivered"], row["time_since_delivered"])
        for row in client.xpending_range(stream, GROUP, "-", "+", 1_000)
    }


def test_each_message_is_handled_committed_and_acked(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(250)])

    report = drain(queue, write_effect, engine, DrainLimits(max_messages=1_000, idle_ms=50))

    assert effect_ids(engine) == ids
    assert pending(client, stream) == {}
    assert (report.read, report.handled, report.failed, report.skipped) == (250, 250, 0, 0)
    assert (report.first_id, report.last_id, report.stopped_by) == (ids[0], ids[-1], "idle")
    assert report.seconds > 0


def test_each_message_has_a_transaction_of_its_own(make_queue, engine):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(30)])
    seen = []

    def handler(msg, session):
        seen.append(len(effect_ids(engine)))
        write_effect(msg, session)

    drain(queue, handler, engine, DrainLimits(max_messages=30))

    assert seen == list(range(30))


def test_a_drain_never_reads_more_than_max_messages(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(50)])

    report = drain(queue, write_effect, engine, DrainLimits(max_messages=17))

    assert (report.read, report.handled, report.stopped_by) == (17, 17, "max_messages")
    assert (queue.backlog_stats().lag, pending(client, stream)) == (33, {})


def test_a_drain_waits_for_messages_until_the_stream_was_empty_for_idle_ms(make_queue, engine):
    queue, sender = make_queue(), make_queue("sender")
    timer = threading.Timer(0.2, lambda: sender.enqueue({"n": 1}))
    timer.start()

    report = drain(queue, write_effect, engine, DrainLimits(max_messages=10, idle_ms=600))

    timer.join()
    assert (report.handled, report.stopped_by) == (1, "idle")
    assert report.seconds >= 0.8


def test_idle_ms_holds_when_the_clients_socket_timeout_cuts_reads_short(make_queue, engine, server_url):
    queue = make_queue()
    queue._longest_block_ms = 40

    report = drain(queue, write_effect, engine, DrainLimits(max_messages=10, idle_ms=300))

    assert report.seconds >= 0.29


def test_a_failing_message_stops_the_drain_and_stays_pending(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(8)])

    with pytest.raises(ValueError, match="order 3") as caught:
        drain(queue, fail_on(3), engine, DrainLimits(max_messages=8, on_error="raise"))

    assert effect_ids(engine) == ids[:3]
    left = pending(client, stream)
    assert list(left) == ids[3:]
    assert left[ids[3]][:2] == (b"worker-1", 1)
    report = report_of(caught.value)
    assert (report.read, report.handled, report.failed, report.handed_back) == (8, 3, 1, 4)
    assert (report.stopped_by, report.failures[0].id) == ("error", ids[3])
    assert '"handled": 3' in "".join(caught.value.__notes__)


def test_what_was_read_and_not_begun_is_handed_back_as_before_and_free_for_the_next_claim(
    make_queue, engine, client, stream
):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(5)])
    with pytest.raises(ValueError, match="order 1"):
        drain(queue, fail_on(1), engine, DrainLimits(max_messages=5, on_error="raise"))

    assert [count for _, count, _ in pending(client, stream).values()] == [1, 0, 0, 0]
    claimed = make_queue("worker-2").claim_stale(10**9)

    assert [(msg.id, msg.delivery_count) for msg in claimed] == [(entry_id, 1) for entry_id in ids[2:]]


def test_a_hand_back_leaves_alone_what_another_consumer_has_claimed_meanwhile(
    make_queue, engine, client, stream
):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(3)])

    def handler(msg, session):
        client.xclaim(stream, GROUP, "thief", 0, [ids[2]])
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the handler's own
        drain(queue, handler, engine, DrainLimits(max_messages=3, on_error="raise"))

    assert pending(client, stream)[ids[2]][:2] == (b"thief", 2)
    report = report_of(caught.value)
    assert (report.handed_back, report.claimed_by_others) == (1, 1)


def test_a_drain_first_takes_what_its_own_consumer_name_has_pending(make_queue, engine):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(6)])
    make_queue().read(50, count=4)
    make_queue("other").read(50, count=1)
    seen = []

    def handler(msg, session):
        seen.append((msg.id, msg.delivery_count))

    drain(queue, handler, engine, DrainLimits(max_messages=10, idle_ms=50))

    assert seen == [(ids[0], 2), (ids[1], 2), (ids[2], 2), (ids[3], 2), (ids[5], 1)]


def test_with_continue_failures_stay_pending_and_are_raised_together_at_the_end(
    make_queue, engine, client, stream
):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(40)])

    with pytest.raises(DrainError) as caught:
        drain(queue, fail_on(3, 17), engine, DrainLimits(max_messages=100, on_error="continue", idle_ms=50))

    assert [failure.id for failure in caught.value.failures] == [ids[3], ids[17]]
    assert [str(failure.error) for failure in caught.value.failures] == ["order 3", "order 17"]
    assert list(pending(client, stream)) == [ids[3], ids[17]]
    assert (caught.value.report.handled, caught.value.report.failed) == (38, 2)
    assert effect_ids(engine) == [entry_id for n, entry_id in enumerate(ids) if n not in (3, 17)]


def test_with_continue_a_failure_is_tried_once_in_one_drain(make_queue, engine):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    make_queue().read(50, count=3)
    calls = []

    def handler(msg, session):
        calls.append(msg.id)
        raise ValueError

    with pytest.raises(DrainError):
        drain(queue, handler, engine, DrainLimits(max_messages=100, on_error="continue", idle_ms=50))

    assert len(calls) == len(set(calls)) == 3


def test_max_failures_ends_a_drain_that_continues(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(30)])

    with pytest.raises(DrainError) as caught:
        drain(
            queue,
            fail_on(*range(30)),
            engine,
            DrainLimits(max_messages=30, on_error="continue", max_failures=4),
        )

    report = caught.value.report
    assert (report.failed, report.stopped_by) == (4, "max_failures")
    assert report.read == report.failed + report.handed_back
    assert len(pending(client, stream)) == report.read


def test_a_time_limit_ends_the_drain_between_messages(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(100)])
    pause = threading.Event()

    def handler(msg, session):
        pause.wait(0.02)
        write_effect(msg, session)

    report = drain(queue, handler, engine, DrainLimits(max_messages=100, max_duration_s=0.3))

    assert report.stopped_by == "max_duration"
    assert 0 < report.handled < 100
    assert report.handled == len(effect_ids(engine))
    assert len(pending(client, stream)) == report.handed_back


def test_a_time_limit_ends_a_wait_too(queue, engine):
    report = drain(
        queue, write_effect, engine, DrainLimits(max_messages=100, max_duration_s=0.2, idle_ms=60_000)
    )

    assert (report.stopped_by, report.read) == ("max_duration", 0)
    assert report.seconds < 10


def test_should_stop_ends_the_drain_between_messages(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(9)])
    asked = itertools.count()

    report = drain(
        queue,
        write_effect,
        engine,
        DrainLimits(max_messages=9, should_stop=lambda: len(effect_ids(engine)) >= 3 or next(asked) > 99),
    )

    assert (report.handled, report.handed_back, report.stopped_by) == (3, 6, "stop")
    assert list(pending(client, stream)) == ids[3:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_rolls_back_and_hands_back_even_with_continue(make_queue, engine, client, stream, error):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(5)])

    def handler(msg, session):
        write_effect(msg, session)
        if msg.payload["n"] == 2:
            raise error

    with pytest.raises(error) as caught:
        drain(queue, handler, engine, DrainLimits(max_messages=5, on_error="continue"))

    assert effect_ids(engine) == ids[:2]
    assert {entry_id: count for entry_id, (_, count, _) in pending(client, stream).items()} == {
        ids[2]: 0,
        ids[3]: 0,
        ids[4]: 0,
    }
    report = report_of(caught.value)
    assert (report.handled, report.handed_back, report.failed, report.read) == (2, 3, 0, 5)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_handler_uses_up_no_attempt(make_queue, engine, client, stream, error):
    queue = make_queue()
    (entry_id,) = queue.enqueue_many([{"n": 0}])
    limits = DrainLimits(max_messages=5, idle_ms=20, max_deliveries=1)
    attempts = []

    def handler(msg, session):
        attempts.append(msg.attempt)
        if len(attempts) <= 3:
            raise error
        write_effect(msg, session)

    for _ in range(3):
        with pytest.raises(error):
            drain(queue, handler, engine, limits)
    report = drain(queue, handler, engine, limits)

    assert (report.handled, report.dead_lettered) == (1, 0)
    assert attempts == [1, 1, 1, 1]
    assert effect_ids(engine) == [entry_id]


def test_a_message_whose_commit_fails_is_not_acked(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(2)])

    def handler(msg, session):
        write_effect(msg, session)
        session.connection.rollback()

    with pytest.raises(DbError):
        drain(queue, handler, engine, DrainLimits(max_messages=2, on_error="raise"))

    assert list(pending(client, stream)) == ids
    assert effect_ids(engine) == []


def test_a_malformed_entry_does_not_block_its_neighbours_and_fails_the_drain(
    make_queue, engine, client, stream
):
    queue = make_queue()
    first = queue.enqueue({"n": 1})
    bad = client.xadd(stream, {"other": "1"}).decode()
    last = queue.enqueue({"n": 2})

    for _ in range(2):
        with pytest.raises(DrainError) as caught:
            drain(queue, write_effect, engine, DrainLimits(max_messages=10, idle_ms=50))

        assert [failure.id for failure in caught.value.failures] == [bad]
        assert isinstance(caught.value.failures[0].error, MalformedEntryError)
    assert effect_ids(engine) == [first, last]
    assert list(pending(client, stream)) == [bad]


@pytest.mark.parametrize("inbox", [Inbox(), True])
def test_messages_found_in_the_inbox_are_acked_without_their_handler(
    make_queue, engine, client, stream, inbox
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(5)])
    drain(queue, write_effect, engine, DrainLimits(max_messages=3), inbox=inbox)
    client.xgroup_setid(stream, GROUP, "0-0")

    report = drain(queue, write_effect, engine, DrainLimits(max_messages=10, idle_ms=50), inbox=inbox)

    assert (report.handled, report.skipped) == (2, 3)
    assert len(effect_ids(engine)) == 5
    assert pending(client, stream) == {}


def test_a_redis_that_becomes_unavailable_in_the_middle_is_visible_and_the_report_says_how_far_it_came(
    make_queue, engine, client, stream
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(40)])

    def handler(msg, session):
        write_effect(msg, session)
        if msg.payload["n"] == 20:
            client.rename(stream, f"{stream}:moved")

    with pytest.raises(QueueError) as caught:
        drain(queue, handler, engine, DrainLimits(max_messages=40))

    assert report_of(caught.value).handled == len(effect_ids(engine)) > 20


def test_prefetched_messages_that_wait_long_are_renewed_and_claimed_ones_are_left_alone(
    make_queue, engine, client, stream
):
    queue = make_queue(claim_idle_ms=100)
    ids = queue.enqueue_many([{"n": n} for n in range(4)])
    handled = []
    pause = threading.Event()

    def handler(msg, session):
        handled.append(msg.id)
        if len(handled) == 1:
            pause.wait(0.12)
            make_queue("thief").claim_stale(100, count=2)

    report = drain(queue, handler, engine, DrainLimits(max_messages=4))

    stolen = [
        entry_id for entry_id, (consumer, _, _) in pending(client, stream).items() if consumer == b"thief"
    ]
    assert set(handled) & set(stolen) <= {ids[0]}
    assert len(handled) + report.claimed_by_others == 4
    assert report.claimed_by_others >= 1


def test_acks_of_committed_messages_do_not_wait_for_the_end_of_a_slow_batch(
    make_queue, engine, client, stream
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(10)])
    pause = threading.Event()
    unacked = []

    def handler(msg, session):
        unacked.append(client.xpending(stream, GROUP)["pending"])
        pause.wait(0.06)

    drain(queue, handler, engine, DrainLimits(max_messages=10))

    assert unacked[0] == 10
    assert unacked[-1] <= 4


def test_two_drains_at_a_time_share_the_messages(make_queue, engine, client, stream):
    ids = make_queue().enqueue_many([{"n": n} for n in range(200)])
    queues = [make_queue("worker-1"), make_queue("worker-2")]
    handled: list[str] = []
    workers = [
        threading.Thread(
            target=drain,
            args=(queue, lambda msg, session: handled.append(msg.id), engine, DrainLimits(idle_ms=100)),
        )
        for queue in queues
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=HANG_S)

    assert sorted(handled) == sorted(ids)
    assert pending(client, stream) == {}


def test_malformed_entries_use_up_no_limit_of_their_neighbours(make_queue, engine, client, stream):
    queue = make_queue()
    for _ in range(3):
        client.xadd(stream, {"other": "1"})
    ids = queue.enqueue_many([{"n": n} for n in range(3)])

    with pytest.raises(DrainError) as caught:
        drain(
            queue,
            write_effect,
            engine,
            DrainLimits(max_messages=3, on_error="continue", max_failures=1, idle_ms=50),
        )

    assert effect_ids(engine) == ids
    assert (caught.value.report.handled, caught.value.report.failed) == (3, 3)


def test_own_messages_that_fail_each_time_are_dead_lettered_if_asked(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    for _ in range(2):
        with pytest.raises(ValueError, match="order 1"):
            drain(queue, fail_on(1), engine, DrainLimits(max_messages=1, max_deliveries=2, on_error="raise"))

    report = drain(queue, fail_on(1), engine, DrainLimits(max_messages=1, max_deliveries=2, on_error="raise"))

    assert (report.dead_lettered, pending(client, stream)) == (1, {})


def test_a_queue_is_drained_once_at_a_time(make_queue, engine):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(2)])

    def handler(msg, session):
        drain(queue, write_effect, engine, DrainLimits(max_messages=10, on_error="raise"))

    with pytest.raises(ConsumerBusyError, match="is draining stream"):
        drain(queue, handler, engine, DrainLimits(max_messages=10, on_error="raise"))

    assert effect_ids(engine) == []


def test_an_exception_that_takes_no_notes_leaves_as_it_is(make_queue, engine):
    class Stubborn(Exception):  # noqa: N818 -- a user's
        def __str__(self) -> str:
            raise RuntimeError

        def add_note(self, note):
            raise RuntimeError

    def handler(msg, session):
        raise Stubborn

    queue = make_queue()
    queue.enqueue({"n": 1})

    with pytest.raises(Stubborn):
        drain(queue, handler, engine, DrainLimits(max_messages=1, on_error="raise"))


@pytest.mark.parametrize("kind", ["async generator", "future"])
def test_a_result_that_may_not_have_run_is_never_acked(make_queue, engine, client, stream, kind):
    async def steps(msg, session):
        yield

    queue = make_queue()
    ids = [queue.enqueue({"n": 1})]
    handlers = {
        "async generator": lambda msg, session: steps(msg, session),
        "future": lambda msg, session: Future(),
    }

    with pytest.raises(TypeError, match="may not have run"):
        drain(queue, handlers[kind], engine, DrainLimits(max_messages=1, on_error="raise"))

    assert list(pending(client, stream)) == ids


def test_options_that_a_handler_sets_on_its_connection_end_with_its_message(make_queue, engine):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(2)])
    seen = []

    def handler(msg, session):
        seen.append(session.connection.get_execution_options().get("tenant"))
        session.connection.execution_options(tenant=msg.payload["n"])

    drain(queue, handler, engine, DrainLimits(max_messages=2))

    assert seen == [None, None]
