"""drain with several messages in handlers: a transaction each, in order per key, all else as with one."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from conquiet import DrainError, DrainLimits, Inbox, drain, drain_stale
from conquiet.logs import MessageFilter
from conquiet.queue.message import entry_id_order
from tests.eventually import HANG_S, eventually
from tests.reports import report_of
from tests.with_redis.test_drain import effect_ids, fail_on, pending, write_effect


class Crowd:
    """How many are inside at once; those who come wait until so many are."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self.inside = self.most = 0

    @contextmanager
    def entered(self, *, waits: bool):
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            if waits:
                self._barrier.wait(HANG_S)
            yield
        finally:
            with self._lock:
                self.inside -= 1


def in_order(entry_ids: list[str]) -> list[str]:
    return sorted(entry_ids, key=entry_id_order)


def unordered(**limits) -> DrainLimits:
    return DrainLimits(**{"concurrency": 4, "order_by": False, "idle_ms": 50} | limits)


def test_so_many_messages_are_in_handlers_at_once_and_never_more(make_queue, engine, client, stream):
    queue, crowd = make_queue(), Crowd(4)
    ids = queue.enqueue_many([{"n": n} for n in range(40)])

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 4):
            time.sleep(0.001)
        write_effect(msg, session)

    report = drain(queue, handler, engine, unordered())

    assert (in_order(effect_ids(engine)), crowd.most) == (ids, 4)
    assert (report.read, report.handled, report.stopped_by) == (40, 40, "idle")
    assert pending(client, stream) == {}


def test_where_no_further_thread_can_be_started_those_that_are_there_handle_all(
    make_queue, engine, monkeypatch, caplog
):
    queue, crowd, start = make_queue(), Crowd(2), threading.Thread.start
    ids = queue.enqueue_many([{"n": n} for n in range(20)])

    def start_two(thread):
        if thread.name.startswith("conquiet-handler-") and thread.name[-1] > "2":
            raise RuntimeError("can't start new thread")
        start(thread)

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 2):
            write_effect(msg, session)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    report = drain(queue, handler, engine, unordered())

    assert (in_order(effect_ids(engine)), crowd.most, report.handled) == (ids, 2, 20)
    assert (
        caplog.messages.count("messages are handled by 2 workers instead of 4: can't start new thread") == 1
    )


@pytest.mark.parametrize("order_by", ["customer", lambda msg: msg.payload["customer"]])
def test_messages_of_one_key_are_handled_in_order_while_others_go_on(make_queue, engine, order_by):
    queue, seen, lock, crowd = make_queue(), defaultdict(list), threading.Lock(), Crowd(2)
    queue.enqueue_many([{"n": n, "customer": n % 3 if n % 5 else 0} for n in range(120)])
    inside: dict[int, int] = defaultdict(int)

    def handler(msg, session):
        key = msg.payload["customer"]
        with crowd.entered(waits=msg.payload["n"] < 2), lock:
            inside[key] += 1
            assert inside[key] == 1
        time.sleep(0.001 * (msg.payload["n"] % 3))
        write_effect(msg, session)
        with lock:
            seen[key].append(msg.payload["n"])
            inside[key] -= 1

    report = drain(queue, handler, engine, unordered(order_by=order_by))

    assert report.handled == 120
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert crowd.most >= 2


def test_one_key_alone_is_handled_one_by_one(make_queue, engine):
    queue, crowd = make_queue(), Crowd(1)
    ids = queue.enqueue_many([{"n": n, "customer": "a"} for n in range(30)])

    def handler(msg, session):
        with crowd.entered(waits=False):
            write_effect(msg, session)

    drain(queue, handler, engine, unordered(order_by="customer"))

    assert (effect_ids(engine), crowd.most) == (ids, 1)


def test_messages_without_the_field_keep_their_order(make_queue, engine):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(30)])

    drain(queue, write_effect, engine, unordered(order_by="custommer"))

    assert effect_ids(engine) == ids


def test_a_plain_stream_without_an_order_is_refused_before_anything_is_read(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 1})

    with pytest.raises(ValueError, match="order_by='customer', or order_by=False"):
        drain(queue, write_effect, engine, DrainLimits(concurrency=4))

    assert (queue.backlog_stats().pending, queue.backlog_stats().lag) == (0, 1)


@pytest.mark.parametrize("order_by", ["", True, 3])
def test_an_order_that_makes_no_sense_is_refused(order_by):
    with pytest.raises(ValueError, match="order_by must be"):
        DrainLimits(order_by=order_by)


def test_a_message_whose_key_cannot_be_known_fails_alone(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n, "customer": 1} if n != 5 else {"n": n} for n in range(20)])

    with pytest.raises(DrainError) as raised:
        drain(queue, write_effect, engine, unordered(order_by=lambda msg: msg.payload["customer"]))

    assert list(pending(client, stream)) == [ids[5]]
    assert effect_ids(engine) == [*ids[:5], *ids[6:]]
    assert isinstance(raised.value.report.failures[0].error, KeyError)


def test_a_drain_never_begins_more_than_max_messages(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(50)])

    report = drain(queue, write_effect, engine, unordered(max_messages=17))

    assert (report.read, report.handled, report.stopped_by) == (17, 17, "max_messages")
    assert (queue.backlog_stats().lag, pending(client, stream)) == (33, {})


def test_after_too_many_failures_those_in_handlers_end_and_the_rest_is_handed_back(
    make_queue, engine, client, stream
):
    queue, crowd, failed = make_queue(), Crowd(4), threading.Event()
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    class Reported(logging.Handler):
        def emit(self, record):
            if "failed at attempt" in record.getMessage():
                failed.set()

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 4):
            # Those that have begun before the failure was noticed.
            assert msg.payload["n"] < 4 or failed.wait(HANG_S)
            fail_on(1)(msg, session)

    log, reported = logging.getLogger("conquiet.consume"), Reported()
    log.addHandler(reported)
    try:
        with pytest.raises(DrainError) as raised:
            drain(queue, handler, engine, unordered(max_failures=1))
    finally:
        log.removeHandler(reported)

    report = raised.value.report
    assert (report.failed, report.stopped_by) == (1, "max_failures")
    assert {ids[0], ids[2], ids[3]} <= set(effect_ids(engine))
    assert report.handled + report.failed + report.handed_back == report.read
    assert report.handed_back >= 1
    assert sorted(effect_ids(engine)) == sorted(set(ids) - set(pending(client, stream)))


def test_on_error_raise_settles_what_was_in_other_handlers(make_queue, engine, client, stream):
    queue, crowd = make_queue(), Crowd(4)
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 4):
            fail_on(1)(msg, session)

    with pytest.raises(ValueError, match="order 1") as raised:
        drain(queue, handler, engine, unordered(on_error="raise"))

    report = report_of(raised.value)
    assert {ids[0], ids[2], ids[3]} <= set(effect_ids(engine))
    assert sorted(effect_ids(engine)) == sorted(set(ids) - set(pending(client, stream)))
    assert (report.failed, report.handled + report.failed + report.handed_back) == (1, 10)


def test_a_stop_lets_handlers_end_and_hands_back_the_rest(make_queue, engine, client, stream):
    queue, crowd, stops = make_queue(), Crowd(4), threading.Event()
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    def handler(msg, session):
        with crowd.entered(waits=True):
            stops.set()
            write_effect(msg, session)

    report = drain(queue, handler, engine, unordered(should_stop=stops.is_set))

    assert (in_order(effect_ids(engine)), report.stopped_by) == (ids[:4], "stop")
    assert (report.handled, report.handed_back) == (4, 6)
    assert list(pending(client, stream)) == ids[4:]
    assert {count for _, count, _ in pending(client, stream).values()} == {0}


def test_what_has_ended_is_acked_while_another_one_is_in_its_handler(make_queue, engine, client, stream):
    queue, may_end = make_queue(), threading.Event()
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    def handler(msg, session):
        if msg.payload["n"] == 0:
            assert may_end.wait(HANG_S)
        write_effect(msg, session)

    thread = threading.Thread(target=drain, args=(queue, handler, engine, unordered(max_messages=10)))
    thread.start()
    try:
        eventually(lambda: list(pending(client, stream)) == ids[:1])
    finally:
        may_end.set()
        thread.join()

    assert (len(effect_ids(engine)), pending(client, stream)) == (10, {})


def test_an_exit_in_a_handler_ends_the_drain_and_hands_its_message_back(make_queue, engine, client, stream):
    queue, crowd = make_queue(), Crowd(4)
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 4):
            write_effect(msg, session)
        if msg.payload["n"] == 1:
            sys.exit(3)

    with pytest.raises(SystemExit) as raised:
        drain(queue, handler, engine, unordered())

    assert {ids[0], ids[2], ids[3]} <= set(effect_ids(engine))
    assert ids[1] not in effect_ids(engine)
    assert sorted(effect_ids(engine)) == sorted(set(ids) - set(pending(client, stream)))
    assert report_of(raised.value).failed == 0


def test_ctrl_c_lets_handlers_end_and_hands_back_the_rest(make_queue, engine, client, stream):
    queue, crowd, interrupted = make_queue(), Crowd(5), threading.Event()
    ids = queue.enqueue_many([{"n": n} for n in range(10)])

    def handler(msg, session):
        with crowd.entered(waits=True):
            assert interrupted.wait(HANG_S)
            write_effect(msg, session)

    def on_interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    def interrupt():
        with crowd.entered(waits=True):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, on_interrupt)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            drain(queue, handler, engine, unordered())
    finally:
        signal.signal(signal.SIGINT, before)

    assert in_order(effect_ids(engine)) == ids[:4]
    assert list(pending(client, stream)) == ids[4:]
    assert (report_of(raised.value).handled, report_of(raised.value).handed_back) == (4, 6)


def test_with_an_inbox_no_effect_happens_twice(make_queue, engine, client, stream):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(40)])
    drain(queue, write_effect, engine, unordered(), inbox=Inbox())
    client.xgroup_setid(stream, "billing", "0")

    report = drain(queue, write_effect, engine, unordered(), inbox=Inbox())

    assert (report.handled, report.skipped) == (0, 40)
    assert in_order(effect_ids(engine)) == ids


def test_stale_messages_are_handled_several_at_once_and_each_once(make_queue, engine, client, stream):
    ids = make_queue().enqueue_many([{"n": n} for n in range(60)])
    make_queue("dead").read(50, count=60)
    crowd = Crowd(4)

    def handler(msg, session):
        with crowd.entered(waits=False):
            time.sleep(0.001)
        write_effect(msg, session)

    report = drain_stale(make_queue("other"), handler, engine, unordered(), min_idle_ms=0)

    assert (in_order(effect_ids(engine)), report.handled, crowd.most) == (ids, 60, 4)
    assert pending(client, stream) == {}


def test_messages_that_a_handler_adds_are_handled_by_the_same_drain(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 0})

    def handler(msg, session):
        time.sleep(0.02)
        write_effect(msg, session)
        if msg.payload["n"] < 5:
            queue.enqueue({"n": msg.payload["n"] + 1})

    report = drain(queue, handler, engine, unordered(idle_ms=1))

    assert report.handled >= 1
    assert len(effect_ids(engine)) == report.handled == 6


def test_log_lines_of_a_handler_name_its_own_message(make_queue, engine, caplog):
    queue, crowd = make_queue(), Crowd(4)
    # Of its own: what an application configures disables the loggers that are there.
    log = logging.getLogger(f"app.{queue.config.stream_key}")
    queue.enqueue_many([{"n": n} for n in range(4)])
    caplog.handler.addFilter(MessageFilter())

    def handler(msg, session):
        with crowd.entered(waits=True):
            log.warning("handling %s", msg.id)

    drain(queue, handler, engine, unordered(max_messages=4))

    lines = [record for record in caplog.records if record.name == log.name]
    assert len(lines) == 4
    assert [f"handling {record.message_id}" for record in lines] == [record.message for record in lines]


def test_a_message_whose_key_cannot_be_one_fails_alone(make_queue, engine):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n, "customer": [n] if n == 3 else n % 2} for n in range(20)])

    with pytest.raises(DrainError) as raised:
        drain(queue, write_effect, engine, unordered(order_by=lambda msg: msg.payload["customer"]))

    assert [failure.id for failure in raised.value.failures] == [ids[3]]
    assert in_order(effect_ids(engine)) == [*ids[:3], *ids[4:]]


def test_threads_go_on_although_their_connections_cannot_be_given_back(make_queue, engine, caplog):
    queue, crowd = make_queue(), Crowd(2)
    queue.enqueue_many([{"n": 0}, {"n": 1}])

    @event.listens_for(engine, "checkin")
    def fail(*_):
        if threading.current_thread().name.startswith("conquiet-handler"):
            raise RuntimeError("the pool's listener fails")

    def handler(msg, session):
        with crowd.entered(waits=msg.payload["n"] < 2):
            write_effect(msg, session)

    def send_more():
        eventually(lambda: "the pool's listener fails" in caplog.text)
        queue.enqueue_many([{"n": n} for n in range(2, 6)])

    sender = threading.Thread(target=send_more)
    sender.start()
    stops = unordered(concurrency=2, max_messages=6, idle_ms=None)
    drained = threading.Thread(
        target=drain, args=(make_queue("worker-2"), handler, engine, stops), daemon=True
    )
    drained.start()

    eventually(lambda: len(effect_ids(engine)) == 6)
    drained.join(HANG_S)
    sender.join()


def test_a_limit_that_the_last_handler_reaches_while_the_next_read_begins_is_the_end(make_queue, engine):
    queue, has_begun, has_ended = make_queue(), threading.Event(), threading.Event()
    queue.enqueue_many([{"n": n} for n in range(3)])

    def order_by(_msg) -> None:
        has_begun.set()

    def should_stop() -> bool:
        # The loop has looked for an end before, and looks once more before it reads.
        if has_begun.is_set():
            has_ended.wait(HANG_S)
            time.sleep(0.05)
        return False

    def handler(_msg, _session):
        has_ended.set()

    limits = unordered(max_messages=1, should_stop=should_stop, order_by=order_by)
    report = drain(queue, handler, engine, limits)

    assert (report.handled, report.stopped_by) == (1, "max_messages")
