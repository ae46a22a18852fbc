"""Document 001, clause by clause: the QueueConsumer. The number in a heading is the clause's."""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from contextlib import suppress

import pytest
import redis
from sqlalchemy import Engine, event, func, insert, select

from conquiet import DbError, DbSession, Inbox, QueueConsumer, QueueError, install_signal_handlers
from conquiet.consume.handler_kinds import new_handling
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_databases.consuming import as_async, async_engine_of

GROUP = "billing"


def rows(engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(effects))


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload)})


def pending(client: redis.Redis, stream: str) -> int:
    return client.xpending(stream, GROUP)["pending"]


@pytest.fixture(params=["plain", "asyncio"])
def run(request, engine):
    """`QueueConsumer.run` into the engine's database, with the handler as it is, or as an `async def` one."""

    def call(consumer, handler) -> None:
        consumer.run(handler=handler, engine=engine)

    def call_async(consumer, handler) -> None:
        consumer.run(handler=as_async(handler), engine=async_engine_of(engine))

    return call if request.param == "plain" else call_async


@pytest.fixture(params=["plain", "asyncio"])
def handling_of(request, engine):
    """What handles a message before its ack, of a handler as it is, or as an `async def` one."""

    def make(handler, inbox):
        if request.param == "plain":
            return new_handling(handler, engine, inbox)
        return new_handling(as_async(handler), async_engine_of(engine), inbox)

    return make


@pytest.fixture
def sent(monkeypatch) -> list[str]:
    """The stream commands that this process sends from now on."""
    names: list[str] = []
    send = redis.connection.Connection.send_packed_command

    def record(connection, command, check_health=True):
        packed = b"".join(command) if isinstance(command, list) else command
        names.extend(name for name in ("XACK", "XREADGROUP", "XCLAIM", "XPENDING") if name.encode() in packed)
        return send(connection, command, check_health)

    monkeypatch.setattr(redis.connection.Connection, "send_packed_command", record)
    return names


# 1.1 The loop


def test_1_1_the_order_is_read_open_handle_commit_ack(make_queue, engine, run, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    seen = []

    def handler(msg, session):
        seen.append(("pending while handled", pending(client, stream)))
        seen.append(("rows while handled", rows(engine)))
        write_effect(msg, session)
        consumer.stop()

    run(consumer, handler)

    assert seen == [("pending while handled", 1), ("rows while handled", 0)]
    assert (pending(client, stream), rows(engine)) == (0, 1)


def test_1_1_nothing_is_acked_before_its_commit(make_queue, engine, run, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(5)])
    consumer = QueueConsumer(queue)
    pending_at_commit = []

    def note(_connection) -> None:
        pending_at_commit.append(pending(client, stream))

    def handler(msg, session):
        write_effect(msg, session)
        if msg.payload["n"] == 4:
            consumer.stop()

    event.listen(Engine, "commit", note)
    try:
        run(consumer, handler)
    finally:
        event.remove(Engine, "commit", note)

    assert pending_at_commit == [1] * 5
    assert pending(client, stream) == 0


def test_1_1_a_user_exception_leaves_the_loop_and_the_message_pending(
    make_queue, engine, run, client, stream
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])

    def handler(msg, session):
        write_effect(msg, session)
        raise ZeroDivisionError("from the handler")

    with pytest.raises(ZeroDivisionError, match="from the handler"):
        run(QueueConsumer(queue), handler)

    assert (pending(client, stream), rows(engine)) == (1, 0)


def test_1_1_the_loop_never_retries_a_message(make_queue, run):
    queue = make_queue()
    queue.enqueue({"n": 1})
    calls = []

    def handler(msg, session):
        calls.append(msg.id)
        raise ValueError

    for _ in range(2):
        consumer = QueueConsumer(queue)
        threading.Timer(0.3, consumer.stop).start()
        with suppress(ValueError):
            run(consumer, handler)

    assert len(calls) == 1


def test_1_1_a_message_whose_commit_fails_is_not_acked(make_queue, engine, run, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})

    def handler(msg, session):
        write_effect(msg, session)
        session.connection.rollback()

    with pytest.raises(DbError):
        run(QueueConsumer(queue), handler)

    assert (pending(client, stream), rows(engine)) == (1, 0)


@pytest.mark.parametrize("kind", ["async", "generator", "returns a coroutine"])
def test_1_1_a_handler_that_does_not_run_when_called_is_never_acked(make_queue, engine, kind):
    queue = make_queue()
    queue.enqueue({"n": 1})

    async def handle_later(msg, session): ...

    def handle_by_steps(msg, session):
        yield

    handler = {
        "async": handle_later,
        "generator": handle_by_steps,
        "returns a coroutine": lambda msg, session: handle_later(msg, session),
    }[kind]
    with pytest.raises(TypeError, match="handler"):
        QueueConsumer(queue).run(handler=handler, engine=engine)

    stats = queue.backlog_stats()
    assert stats.lag + stats.pending == 1


# 1.2 Alignment with the database layer


def test_1_2_each_handling_has_its_own_transaction(make_queue, engine, run):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    consumer = QueueConsumer(queue)
    sessions = []

    def handler(msg, session):
        sessions.append((session.orm, rows(engine)))
        write_effect(msg, session)
        if msg.payload["n"] == 2:
            consumer.stop()

    run(consumer, handler)

    assert len({id(session) for session, _ in sessions}) == 3
    assert [committed for _, committed in sessions] == [0, 1, 2]


def test_1_2_a_session_ends_with_its_handling(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    sessions = []

    def handler(msg, session):
        sessions.append(session)
        consumer.stop()

    consumer.run(handler=handler, engine=engine)

    [session] = sessions
    assert isinstance(session, DbSession)
    with pytest.raises(DbError, match="after its `with` block"):
        session.execute(select(1))


# 3 Responsibilities, 4 Non-responsibilities


def test_3_an_idle_consumer_waits_in_redis_and_does_not_spin(make_queue, sent):
    consumer = QueueConsumer(make_queue(block_ms=100))
    threading.Timer(0.5, consumer.stop).start()

    assert list(consumer.iter_messages()) == []

    assert 1 <= len(sent) <= 7


def test_4_nothing_is_acked_by_iterating(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    consumer = QueueConsumer(queue)

    for msg in consumer.iter_messages():
        if msg.payload["n"] == 2:
            consumer.stop()

    assert pending(client, stream) == 3


def test_4_at_most_one_message_is_held_at_a_time(make_queue, run, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(5)])
    consumer = QueueConsumer(queue)
    held = []

    def handler(msg, session):
        held.append(pending(client, stream))
        if msg.payload["n"] == 4:
            consumer.stop()

    run(consumer, handler)

    assert held == [1] * 5


def test_4_no_thread_is_started(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    before = threading.active_count()
    seen = []

    def handler(msg, session):
        seen.append(threading.active_count())
        consumer.stop()

    consumer.run(handler=handler, engine=engine)

    assert seen == [before]


# 5 Shutdown


def test_5_1_after_stop_no_new_read_is_begun(make_queue, sent):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    consumer.stop()

    assert consumer.next() is None
    assert list(consumer.iter_messages()) == []

    assert sent == []


def test_5_1_a_message_in_flight_at_stop_is_handled_and_acked_and_the_next_one_is_not_read(
    make_queue, engine, run, client, stream
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(2)])
    consumer = QueueConsumer(queue)

    def handler(msg, session):
        consumer.stop()
        write_effect(msg, session)

    run(consumer, handler)

    assert (pending(client, stream), rows(engine)) == (0, 1)
    assert queue.backlog_stats().lag == 1


def test_5_1_a_message_that_arrives_while_stop_is_called_is_handled_or_stays_undelivered(
    make_queue, engine, run
):
    for _ in range(20):
        queue = make_queue(block_ms=2_000)
        consumer = QueueConsumer(queue)
        before = rows(engine)
        worker = threading.Thread(target=run, args=(consumer, write_effect), daemon=True)
        worker.start()
        sender = threading.Thread(target=queue.enqueue, args=({"n": 1},))
        sender.start()
        consumer.stop()
        sender.join()
        worker.join(timeout=HANG_S)
        stats = queue.backlog_stats()

        assert not worker.is_alive()
        assert stats.pending == 0
        assert (rows(engine) - before) + stats.lag == 1
        for msg in queue.read(50, count=10):
            queue.ack(msg)


def test_5_1_stop_may_be_called_from_a_signal_handler(make_queue, run):
    consumer = QueueConsumer(make_queue())
    restore = install_signal_handlers(consumer, [signal.SIGTERM])
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    run(consumer, write_effect)

    restore()
    assert consumer.is_stopping


def test_5_1_the_signal_handler_that_was_there_before_is_called_too(make_queue):
    called = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    try:
        consumer = QueueConsumer(make_queue())
        install_signal_handlers(consumer, [signal.SIGTERM])

        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: called)

        assert consumer.is_stopping
        assert called == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_5_1_a_second_signal_finds_the_earlier_handler_in_place(make_queue):
    before = signal.getsignal(signal.SIGTERM)
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: None)
    mine = signal.getsignal(signal.SIGTERM)
    try:
        install_signal_handlers(QueueConsumer(make_queue()), [signal.SIGTERM])

        os.kill(os.getpid(), signal.SIGTERM)

        eventually(lambda: signal.getsignal(signal.SIGTERM) is mine)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert signal.getsignal(signal.SIGTERM) == before


# 6 Message retrieval


def test_6_1_next_returns_at_most_one_message(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])

    msg = QueueConsumer(queue).next()

    assert msg is not None
    assert msg.payload == {"n": 0}
    assert pending(client, stream) == 1


def test_6_1_next_returns_none_when_there_is_no_message(make_queue):
    assert QueueConsumer(make_queue()).next(block_ms=20) is None


def test_6_1_without_block_ms_next_waits_the_configured_time(make_queue):
    consumer = QueueConsumer(make_queue(block_ms=150))
    started = time.monotonic()

    consumer.next()
    consumer.next(None)

    assert time.monotonic() - started >= 0.28


@pytest.mark.parametrize("block_ms", [0, -5, True, 0.5])
def test_6_1_next_refuses_a_block_ms_that_is_no_positive_int(make_queue, block_ms):
    with pytest.raises((TypeError, ValueError), match=f"block_ms .*{block_ms!r}"):
        QueueConsumer(make_queue()).next(block_ms=block_ms)


def test_6_1_redis_errors_of_next_are_queue_errors(make_queue, client, stream):
    consumer = QueueConsumer(make_queue())
    client.delete(stream)

    with pytest.raises(QueueError):
        consumer.next()


# 7 Iteration


def test_7_iteration_yields_until_stopped(make_queue):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(5)])
    consumer = QueueConsumer(queue)
    seen = []

    for msg in consumer.iter_messages():
        seen.append(msg.payload["n"])
        consumer.ack(msg)
        if len(seen) == 3:
            consumer.stop()

    assert seen == [0, 1, 2]


def test_7_iteration_propagates_exceptions(make_queue, client, stream):
    consumer = QueueConsumer(make_queue())
    client.delete(stream)

    with pytest.raises(QueueError, match="NOGROUP"):
        next(consumer.iter_messages())


# 8 Acknowledgment


def test_8_ack_is_explicit_and_settles_the_message(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    msg = consumer.next()
    assert msg is not None
    assert pending(client, stream) == 1

    consumer.ack(msg)

    assert pending(client, stream) == 0


# 9 Error propagation


def test_9_1_an_ack_that_fails_in_the_loop_is_visible_and_ends_it(make_queue, engine, run, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(2)])
    handled = []

    def handler(msg, session):
        handled.append(msg.id)
        write_effect(msg, session)
        client.rename(stream, f"{stream}:moved")
        client.set(stream, "not a stream")

    with pytest.raises(QueueError, match=r"XACK .*WRONGTYPE"):
        run(QueueConsumer(queue), handler)

    assert len(handled) == 1
    assert rows(engine) == 1


def test_9_1_a_read_that_fails_in_the_loop_is_visible_and_the_ack_before_it_counts(
    make_queue, engine, run, client, stream
):
    queue = make_queue()
    queue.enqueue({"n": 1})

    def handler(msg, session):
        write_effect(msg, session)
        client.xgroup_destroy(stream, GROUP)

    with pytest.raises(QueueError, match="NOGROUP"):
        run(QueueConsumer(queue), handler)

    assert rows(engine) == 1


# 10 Recovery


def test_10_2_the_loop_reads_new_messages_only(make_queue, run, client, stream, sent):
    queue = make_queue()
    stale_id = queue.enqueue({"n": "stale"})
    make_queue("crashed").read(50)
    client.xclaim(stream, GROUP, "crashed", 0, [stale_id], idle=10**9)
    queue.enqueue({"n": "new"})
    consumer = QueueConsumer(queue)
    sent.clear()
    seen = []

    def handler(msg, session):
        seen.append(msg.payload["n"])
        threading.Timer(0.2, consumer.stop).start()

    run(consumer, handler)

    assert seen == ["new"]
    assert set(sent) == {"XREADGROUP", "XACK"}
    assert pending(client, stream) == 1


def test_10_4_claim_stale_is_explicit_and_uses_the_configured_idle_time(make_queue, client, stream):
    queue = make_queue(claim_idle_ms=1_000)
    entry_id = queue.enqueue({"n": 1})
    make_queue("crashed").read(50)
    consumer = QueueConsumer(queue)
    assert consumer.claim_stale() == []
    client.xclaim(stream, GROUP, "crashed", 0, [entry_id], idle=2_000)

    (msg,) = consumer.claim_stale()

    assert (msg.id, msg.delivery_count) == (entry_id, 3)


# 11 Template-method processing


def test_11_run_takes_handler_and_engine_by_name():
    parameters = inspect.signature(QueueConsumer.run).parameters

    assert parameters["handler"].kind is parameters["engine"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(("inbox", "handled"), [(None, 2), (Inbox(), 1)])
def test_11_a_message_redelivered_after_its_commit_is_handled_once_only_with_an_inbox(
    make_queue, handling_of, inbox, handled
):
    make_queue().enqueue({"n": 1})
    calls = []

    def handler(msg, session):
        calls.append(msg.id)

    # The first worker dies between its commit and its ack.
    for messages in (make_queue("worker-1").read(50), make_queue("worker-2").claim_stale(0)):
        with handling_of(handler, inbox) as handling:
            handling.handle(messages[0])

    assert len(calls) == handled


# 12 Observability


def test_12_1_the_loop_asks_redis_nothing_but_reads_and_acks(make_queue, run, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    consumer = QueueConsumer(queue)
    client.config_resetstat()

    def handler(msg, session):
        if msg.payload["n"] == 2:
            consumer.stop()

    run(consumer, handler)

    used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert used <= {
        "xreadgroup",
        "xack",
        "info",
        "config|resetstat",
        "config",
        "client|setinfo",
        "hello",
        "client",
    }


def test_12_2_backlog_stats_is_a_query_without_side_effects(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    queue.read(50)
    before = (
        client.xinfo_groups(stream),
        client.xpending_range(stream, GROUP, "-", "+", 10)[0]["times_delivered"],
    )

    stats = queue.backlog_stats()

    after = (
        client.xinfo_groups(stream),
        client.xpending_range(stream, GROUP, "-", "+", 10)[0]["times_delivered"],
    )
    assert after == before
    assert (stats.length, stats.lag, stats.pending) == (3, 2, 1)
