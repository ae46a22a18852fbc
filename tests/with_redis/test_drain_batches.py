"""drain with a batch handler: one transaction for many; a failed batch is handled again one by one."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import insert

from conquiet import (
    Ack,
    DeadLetter,
    DrainError,
    DrainLimits,
    Inbox,
    QueueConsumer,
    Retry,
    batch_handler,
    drain,
)
from conquiet.consume import load_handler, reference_to
from conquiet.queue.message import entry_id_order
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.reports import report_of
from tests.with_redis.test_drain import effect_ids, pending


class Loading:
    """A batch handler that remembers which messages came together."""

    def __init__(self, *bad: int, answer=None) -> None:
        self.batches: list[list[int]] = []
        self._bad = set(bad)
        self._answer = answer
        self._lock = threading.Lock()

    def __call__(self, messages, session):
        numbers = [msg.payload["n"] for msg in messages]
        with self._lock:
            self.batches.append(numbers)
        session.execute(insert(effects), [{"entry_id": msg.id, "note": "-"} for msg in messages])
        if self._bad & set(numbers):
            if self._answer is not None:
                return self._answer
            raise ValueError(f"bad among {numbers}")
        return None


@batch_handler
def load_many(messages, session) -> None:
    """Found by its name."""


def drain_batches(queue, loading, engine, *, inbox=None, **limits):
    chosen = DrainLimits(**{"batch_size": 50, "idle_ms": 50} | limits)
    return drain(queue, batch_handler(loading), engine, chosen, inbox=inbox)


def test_a_batch_is_handled_in_one_transaction_and_acked_after_it(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading()
    ids = queue.enqueue_many([{"n": n} for n in range(120)])

    report = drain_batches(queue, loading, engine)

    assert [len(numbers) for numbers in loading.batches] == [50, 50, 20]
    assert (effect_ids(engine), pending(client, stream), report.handled) == (ids, {}, 120)


def test_of_a_failed_batch_one_poison_message_costs_itself_alone(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading(7)
    ids = queue.enqueue_many([{"n": n} for n in range(60)])

    with pytest.raises(DrainError) as raised:
        drain_batches(queue, loading, engine)

    assert loading.batches[0] == list(range(50))
    assert loading.batches[1:51] == [[n] for n in range(50)]
    assert loading.batches[51:] == [list(range(50, 60))]
    assert effect_ids(engine) == [*ids[:7], *ids[8:]]
    assert {entry: count for entry, (_, count, _) in pending(client, stream).items()} == {ids[7]: 1}
    report = raised.value.report
    assert (report.read, report.handled, report.failed) == (60, 59, 1)
    assert str(report.failures[0].error) == "bad among [7]"


@pytest.mark.parametrize("answer", [DeadLetter("no such customer"), Retry()])
def test_an_answer_for_a_batch_is_asked_for_each_message_alone(make_queue, engine, answer):
    queue, loading = make_queue(), Loading(3, answer=answer)
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    try:
        report = drain_batches(queue, loading, engine)
    except DrainError as error:
        report = error.report

    expected = {"dead_lettered": 1} if isinstance(answer, DeadLetter) else {"failed": 1}
    assert {name: count for name, count in report.counts.items() if count} == {
        "read": 10,
        "handled": 9,
        **expected,
    }
    assert effect_ids(engine) == [*ids[:3], *ids[4:]]


def test_an_ack_for_a_batch_is_for_all_of_it(make_queue, engine):
    queue, loading = make_queue(), Loading(3, answer=Ack())
    queue.enqueue_many([{"n": n} for n in range(10)])

    assert drain_batches(queue, loading, engine).handled == 10


def test_with_an_inbox_only_what_is_new_comes_to_the_handler(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading()
    ids = queue.enqueue_many([{"n": n} for n in range(20)])
    drain_batches(queue, Loading(), engine, inbox=Inbox(), max_messages=12)
    client.xgroup_setid(stream, "billing", "0")

    report = drain_batches(queue, loading, engine, inbox=Inbox())

    assert loading.batches == [list(range(12, 20))]
    assert (report.handled, report.skipped) == (8, 12)
    assert (effect_ids(engine), pending(client, stream)) == (ids, {})


def test_a_batch_that_was_handled_before_does_not_call_the_handler(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading()
    queue.enqueue_many([{"n": n} for n in range(5)])
    drain_batches(queue, Loading(), engine, inbox=Inbox())
    client.xgroup_setid(stream, "billing", "0")

    assert drain_batches(queue, loading, engine, inbox=Inbox()).skipped == 5
    assert loading.batches == []


def test_a_failed_batch_leaves_no_inbox_rows(make_queue, engine):
    queue, loading = make_queue(), Loading(3)
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    with pytest.raises(DrainError):
        drain_batches(queue, loading, engine, inbox=Inbox())
    loading._bad.clear()
    report = drain_batches(queue, loading, engine, inbox=Inbox())

    assert (report.handled, report.skipped) == (1, 0)
    assert sorted(effect_ids(engine), key=entry_id_order) == ids


def test_limits_count_messages_and_not_batches(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading()
    queue.enqueue_many([{"n": n} for n in range(100)])

    report = drain_batches(queue, loading, engine, max_messages=70)

    assert [len(numbers) for numbers in loading.batches] == [50, 20]
    assert (report.read, report.handled, report.stopped_by) == (70, 70, "max_messages")


def test_after_too_many_failures_the_rest_of_a_failed_batch_is_handed_back(
    make_queue, engine, client, stream
):
    queue, loading = make_queue(), Loading(2, 4, 6)
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    with pytest.raises(DrainError) as raised:
        drain_batches(queue, loading, engine, max_failures=2)

    report = raised.value.report
    assert (report.handled, report.failed, report.handed_back) == (3, 2, 5)
    assert effect_ids(engine) == [ids[0], ids[1], ids[3]]


def test_payloads_that_a_failed_batch_changed_are_as_they_were_delivered(make_queue, engine):
    queue, seen = make_queue(), []
    queue.enqueue_many([{"n": n} for n in range(3)])

    @batch_handler
    def handler(messages, session):
        seen.append([msg.payload.copy() for msg in messages])
        for msg in messages:
            msg.payload["n"] = "changed"
        if len(messages) > 1:
            raise ValueError("as a batch")

    drain(queue, handler, engine, DrainLimits(idle_ms=20))

    assert seen == [[{"n": 0}, {"n": 1}, {"n": 2}], [{"n": 0}], [{"n": 1}], [{"n": 2}]]


def test_batches_run_beside_each_other_and_keep_the_order_of_keys(make_queue, engine, client, stream):
    queue, loading = make_queue(), Loading(33)
    ids = queue.enqueue_many([{"n": n, "customer": n % 7} for n in range(300)])

    with pytest.raises(DrainError):
        drain_batches(queue, loading, engine, batch_size=20, concurrency=4, order_by="customer")

    assert sorted(effect_ids(engine)) == sorted(set(ids) - {ids[33]})
    assert list(pending(client, stream)) == [ids[33]]
    numbers = {entry: n for n, entry in enumerate(ids)}
    for customer in range(7):
        mine = [numbers[e] for e in effect_ids(engine) if numbers[e] % 7 == customer]
        assert mine == sorted(mine)


def test_a_batch_handler_is_found_by_its_name():
    assert load_handler(reference_to(load_many)) is load_many


def test_a_consumer_of_single_messages_refuses_a_batch_handler(make_queue, engine):
    with pytest.raises(TypeError, match="handles batches"):
        QueueConsumer(make_queue()).run(handler=load_many, engine=engine)


def test_a_batch_handler_that_cannot_be_called_with_a_session_is_refused(make_queue, engine):
    with pytest.raises(TypeError, match="session"):
        drain(make_queue(), batch_handler(lambda messages: None), engine)


def test_the_last_message_of_a_failed_batch_is_alone_too(make_queue, engine, client, stream):
    queue, has_begun = make_queue(), threading.Event()
    last = queue.enqueue_many([{"n": n} for n in range(9)])[-1].encode()

    class Failing(Loading):
        def __call__(self, messages, session):
            if messages[0].payload["n"] == 3:
                has_begun.set()
            elif len(messages) == 3 and messages[0].payload["n"] == 0:
                has_begun.wait(HANG_S)
                # The third batch is queued when the first one fails.
                eventually(lambda: client.xinfo_groups(stream)[0]["last-delivered-id"] == last)
            return super().__call__(messages, session)

    loading = Failing(2)
    with pytest.raises(DrainError) as raised:
        drain_batches(queue, loading, engine, batch_size=3, concurrency=2, order_by=False)

    assert (raised.value.report.handled, raised.value.report.failed) == (8, 1)
    assert [numbers for numbers in loading.batches if 2 in numbers] == [[0, 1, 2], [2]]


class InterruptedInbox(Inbox):
    """Ctrl-C while the database is asked whether a message was handled."""

    def has(self, session, msg) -> bool:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_inbox_is_asked_hands_the_whole_batch_back(make_queue, engine):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(5)])
    queue.read(50, count=5)

    with pytest.raises(KeyboardInterrupt) as raised:
        drain_batches(queue, Loading(), engine, inbox=InterruptedInbox(), max_deliveries=1)

    report = report_of(raised.value)
    assert report.read == report.handed_back == 1
    assert drain_batches(make_queue("worker-2"), Loading(), engine).handled == 5


def test_a_drain_is_not_idle_while_a_failed_batch_is_to_be_handled_again(make_queue, engine, client, stream):
    queue = make_queue()
    last = queue.enqueue_many([{"n": n} for n in range(6)])[-1].encode()

    class Failing(Loading):
        def __call__(self, messages, session):
            if len(messages) == 3 and messages[0].payload["n"] == 0:
                # The loop has nothing more to do than to read.
                eventually(lambda: client.xinfo_groups(stream)[0]["last-delivered-id"] == last)
                time.sleep(0.05)
            return super().__call__(messages, session)

    with pytest.raises(DrainError) as raised:
        drain_batches(queue, Failing(2), engine, batch_size=3, concurrency=2, order_by=False)

    report = raised.value.report
    assert (report.handled, report.failed, report.handed_back) == (5, 1, 0)
