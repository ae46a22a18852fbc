"""What the one engine must not do to a partition: each of these failed when it was written."""

from __future__ import annotations

import gc
import logging
import signal
import time
import weakref
from typing import Any

import pytest
from sqlalchemy import event, insert
from sqlalchemy.exc import OperationalError

from conquiet import DrainLimits, Inbox, QueueError
from conquiet.consume.decisions import Decisions
from conquiet.mq import (
    ConsumerConfig,
    DeadLetter,
    Message,
    Retry,
    RetryPolicy,
    drain_partition,
)
from conquiet.mq.own.waiting import Waiting
from tests.conftest import effects
from tests.eventually import eventually
from tests.reports import report_of
from tests.with_redis.mq.consuming import GROUP, quick


def drain(topic, handler, engine=None, *, inbox=None, config=None, **options):
    limits = DrainLimits(**{"idle_ms": 20} | options)
    return drain_partition(topic, 0, GROUP, handler, engine, limits, inbox=inbox, config=config)


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload)})


def test_retries_that_wait_do_not_end_a_drain_before_new_messages(topic, send):
    """Many pages of a take-over have nothing that can be handled: that is not a partition without work."""
    send(600)
    later = ConsumerConfig(retry=RetryPolicy(base_delay_ms=60_000), ordering="strict")
    drain(topic, lambda msg: Retry(), config=later, max_messages=600, max_failures=None)
    send(1, start=-1)
    seen = []

    drain(topic, lambda msg: seen.append(msg.payload["n"]), config=later, batch_size=10)

    assert seen == [-1]


def test_retries_that_are_due_do_not_keep_new_messages_waiting(topic, send):
    """More retries than can be handled until they are due again, as when a service times out for each."""
    send(2)
    policy = RetryPolicy(base_delay_ms=0, max_attempts=1_000)
    seen = []

    def handler(msg):
        seen.append(msg.payload["n"])
        if msg.payload["n"] < 2:
            if msg.attempt == 2 and msg.payload["n"] == 0:
                send(1, start=2)
            time.sleep(0.01)
            return Retry(delay_ms=0)
        return None

    config = ConsumerConfig(retry=policy)
    drain(topic, handler, config=config, max_duration_s=2, idle_ms=500, max_failures=None)

    assert 2 in seen[:10]


def test_what_was_acked_is_reported_as_handled_if_redis_fails_during_the_wait(topic, send, monkeypatch):
    send(3)

    def fails(self, last_seen, block_ms):
        raise QueueError("XREAD", stream=topic.keys.stream(0), group="billing", reason="connection reset")

    monkeypatch.setattr(Waiting, "for_new", fails)
    with pytest.raises(QueueError) as caught:
        drain(topic, lambda msg: None)

    report = report_of(caught.value)
    assert (report.handled, report.claimed_by_others) == (3, 0)


def test_a_ctrl_c_during_the_wait_leaves_the_report_right(topic, send, monkeypatch):
    send(3)

    def interrupted(self, last_seen, block_ms):
        raise KeyboardInterrupt

    monkeypatch.setattr(Waiting, "for_new", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        drain(topic, lambda msg: None)

    report = report_of(caught.value)
    assert (report.handled, report.claimed_by_others) == (3, 0)


def test_strict_order_holds_for_what_was_parked_behind_a_message_that_others_settled(topic, producer, client):
    keyed = [Message(payload={"n": n}, key="other" if n == 2 else "anna") for n in range(4)]
    ids = producer.send_many(topic.name, keyed)
    seen = []

    def handler(msg):
        n = msg.payload["n"]
        if n == 0:
            return Retry(delay_ms=60_000)
        if n == 2:
            # An administrator acks the message that is about to wait for its retry.
            client.xack(topic.keys.stream(0), GROUP, ids[0])
            time.sleep(0.15)
        seen.append(n)
        return None

    drain(topic, handler, config=ConsumerConfig(ordering="strict"), idle_ms=100)

    assert [n for n in seen if n != 2] == [1, 3]


def test_a_consumer_keeps_nothing_of_what_failed(topic, send, start, monkeypatch):
    """A traceback keeps the locals of its frames: a consumer that runs for weeks must drop them."""
    # pytest keeps every record, and a record its traceback.
    monkeypatch.setattr(logging.getLogger("conquiet.consume.conclusions"), "disabled", True)
    send(50)
    kept: weakref.WeakSet[Any] = weakref.WeakSet()

    class Frame:
        """A big thing that a handler works on."""

    seen = []

    def handler(msg):
        frame = Frame()
        kept.add(frame)
        seen.append(msg.id)
        raise ValueError(msg.id)

    start(topic, handler, config=quick(retry=RetryPolicy(max_attempts=1)))
    eventually(lambda: len(seen) == 50)
    send(1, start=99)
    eventually(lambda: len(seen) == 51)
    time.sleep(0.5)
    gc.collect()

    assert len(kept) <= 1


no_text: Any = None
an_error: Any = ValueError("x")


@pytest.mark.parametrize("answer", [DeadLetter(no_text), DeadLetter(an_error), Retry(reason=no_text)])
def test_an_answer_whose_reason_is_no_text_ends_no_consumer(topic, send, start, answer):
    send(2)
    seen = []

    def handler(msg):
        seen.append(msg.payload["n"])
        return answer if msg.payload["n"] == 0 else None

    running = start(topic, handler, config=quick())
    eventually(lambda: 1 in seen or not running.is_running)
    time.sleep(0.5)

    assert running.is_running, running.error


def give_to_the_dead(topic, send):
    """One message, at which three workers have died."""
    (entry_id,) = send(1)
    stream = topic.keys.stream(0)
    topic.client.xgroup_create(stream, GROUP, "0-0")
    topic.client.xreadgroup(GROUP, "dead", {stream: ">"})
    topic.client.xclaim(stream, GROUP, "dead", 0, [entry_id], retrycount=3)


def test_an_inbox_that_fails_while_a_message_is_given_up_ends_no_consumer(topic, send, start, engine):
    give_to_the_dead(topic, send)
    policy = RetryPolicy(max_attempts=2, base_delay_ms=10)
    failures: list[Any] = []

    def refuse(_connection, _cursor, statement, *_more):
        if statement.startswith("SELECT") and "message_key" in statement and len(failures) < 1:
            failures.append(statement)
            raise OperationalError(statement, {}, Exception("gone"), connection_invalidated=True)

    event.listen(engine, "before_cursor_execute", refuse)
    running = start(topic, write_effect, engine=engine, inbox=Inbox(), config=quick(retry=policy))
    eventually(lambda: failures or not running.is_running)
    time.sleep(1)

    assert running.is_running, repr(running.error)


def test_an_error_that_is_its_own_cause_is_retried_as_any_other(topic, send):
    """`raise error from error`: whoever walks along the causes never comes to an end."""
    send(2)
    seen = []

    def handler(msg):
        seen.append(msg.payload["n"])
        if msg.payload["n"] == 0:
            try:
                raise KeyError("sku")
            except KeyError as error:
                raise error from error

    def hangs(*_signal):
        pytest.fail("the loop hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        report = drain(topic, handler)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert (report.retried, report.handled, seen) == (1, 1, [0, 1])


def test_after_an_outage_a_message_is_handled_as_it_was_sent(topic, send, engine):
    """It is the same attempt, so it must be the same message, whatever its handler did to it."""
    send(1)
    is_down: list[bool] = []
    seen = []

    @event.listens_for(engine, "engine_connect")
    def refuse(_connection):
        if is_down and is_down.pop():
            raise OperationalError("connect", {}, Exception("down"))

    def handler(msg, session):
        seen.append(msg.payload.pop("n", None))
        if len(seen) == 1:
            is_down.append(True)
            raise OperationalError("INSERT", {}, Exception("gone"), connection_invalidated=True)

    drain(topic, handler, engine, idle_ms=300)

    assert seen == [0, 0]


def test_an_outage_is_over_when_the_inbox_answers_again(topic, send, engine):
    """Else the first hiccup, hours later, looks like an outage of hours."""
    give_to_the_dead(topic, send)
    policy = RetryPolicy(max_attempts=2)
    found, down = [], [True]
    put_back = Decisions.put_back

    def noted(self, messages, error, queued, since):
        found.append(self.database)
        put_back(self, messages, error, queued, since)

    def refuse(_connection):
        if down and found == []:
            raise OperationalError("connect", {}, Exception("down"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decisions, "put_back", noted)
        inbox = Inbox()
        inbox.create_table(engine)
        patch.setattr(Inbox, "create_table", lambda self, engine: None)
        event.listen(engine, "engine_connect", refuse)
        report = drain(topic, write_effect, engine, inbox=inbox, config=quick(retry=policy), idle_ms=300)

    assert report.dead_lettered == 1
    assert not found[0].is_on


def test_a_parked_message_is_received_once(topic, producer, spans):
    producer.send_many(topic.name, [Message(payload={"n": n}, key="anna") for n in range(3)])

    def handler(msg):
        return Retry(delay_ms=50) if msg.payload["n"] == 0 and msg.attempt == 1 else None

    drain(topic, handler, config=ConsumerConfig(ordering="strict"), idle_ms=200)

    # The first one twice: it was delivered twice.
    assert len(spans.all("receive")) == 4
