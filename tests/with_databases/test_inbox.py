"""Inbox: one row per handled message, in the transaction of its effects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, inspect, text

from conquiet import (
    DbError,
    DbSession,
    DrainLimits,
    Inbox,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    batch_handler,
    drain,
)
from tests.with_databases.conftest import OpenQueue, only_on
from tests.with_databases.consuming import ConsumeOne, in_session, pending, redeliver
from tests.with_databases.tables import notes, write, write_id


def record(db: Engine, inbox: Inbox, stream: str, group: str = "billing", entry_id: str = "1-1") -> bool:
    with DbSession(db) as session:
        return inbox.record(session, QueueMessage(stream, group, entry_id, {})) is not None


def has(db: Engine, inbox: Inbox, stream: str, group: str = "billing", entry_id: str = "1-1") -> bool:
    with DbSession(db) as session:
        return inbox.has(session, QueueMessage(stream, group, entry_id, {}))


def grow_older(db: Engine, stream: str, age: timedelta) -> None:
    statement = text("UPDATE conquiet_inbox SET handled_at_ms = handled_at_ms - :ms WHERE stream = :stream")
    with db.begin() as connection:
        connection.execute(statement, {"ms": age // timedelta(milliseconds=1), "stream": stream})


@pytest.fixture
def inbox(db: Engine) -> Inbox:
    """An inbox whose table is there."""
    made = Inbox()
    made.create_table(db)
    return made


def test_redelivered_message_is_acked_without_its_handler(db: Engine, valkey_queue: RedisStreamsQueue):
    entry_id = valkey_queue.enqueue({})
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox())

    redeliver(valkey_queue)
    report = drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox())

    assert (report.handled, report.skipped) == (0, 1)
    assert (pending(valkey_queue), notes(db)) == (0, [entry_id])


def test_running_consumer_skips_a_redelivered_message_and_goes_on(
    db: Engine, valkey_queue: RedisStreamsQueue
):
    consumer = QueueConsumer(valkey_queue)

    def stop_at_the_last(msg: QueueMessage, session: DbSession) -> None:
        write(session, msg.payload["name"])
        if msg.payload["name"] == "last":
            consumer.stop()

    valkey_queue.enqueue({"name": "first"})
    drain(valkey_queue, stop_at_the_last, db, DrainLimits(max_messages=1), inbox=Inbox())
    redeliver(valkey_queue)
    valkey_queue.enqueue({"name": "last"})
    consumer.run(handler=stop_at_the_last, engine=db, inbox=Inbox())

    assert (pending(valkey_queue), notes(db)) == (0, ["first", "last"])


def test_redelivered_message_is_handled_again_without_an_inbox(db: Engine, valkey_queue: RedisStreamsQueue):
    entry_id = valkey_queue.enqueue({})
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1))

    redeliver(valkey_queue)
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1))

    assert notes(db) == [entry_id, entry_id]


def test_failed_message_is_handled_at_its_next_delivery(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def failing(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        raise ValueError("failed")

    entry_id = valkey_queue.enqueue({})
    with pytest.raises(ValueError, match="failed"):
        consume_one(valkey_queue, failing, db, Inbox())
    report = drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (report.handled, report.skipped, notes(db)) == (1, 0, [entry_id])


def test_failed_message_is_handled_at_its_next_delivery_even_if_its_handler_committed(
    db: Engine, valkey_queue: RedisStreamsQueue
):
    def failing(_msg: QueueMessage, session: DbSession) -> None:
        session.connection.commit()
        raise ValueError("failed")

    entry_id = valkey_queue.enqueue({})
    with pytest.raises((DbError, ValueError)):
        drain(valkey_queue, failing, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())
    report = drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (report.handled, report.skipped, notes(db)) == (1, 0, [entry_id])


def test_message_is_in_the_inbox_after_its_commit(db: Engine, inbox: Inbox, valkey_queue: RedisStreamsQueue):
    entry_id = valkey_queue.enqueue({})

    before = has(db, inbox, valkey_queue.config.stream_key, entry_id=entry_id)
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=inbox)
    after = has(db, inbox, valkey_queue.config.stream_key, entry_id=entry_id)

    assert (before, after) == (False, True)


def test_message_of_a_failed_transaction_is_not_in_the_inbox(db: Engine, inbox: Inbox):
    def work(session: DbSession) -> None:
        inbox.record(session, QueueMessage("orders", "billing", "1-1", {}))
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert not has(db, inbox, "orders")


def test_same_message_of_another_group_is_handled(db: Engine, open_queue: OpenQueue):
    queues = [open_queue(group="billing"), open_queue(group="shipping")]
    entry_id = queues[0].enqueue({})

    reports = [drain(queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox()) for queue in queues]

    assert [report.handled for report in reports] == [1, 1]
    assert notes(db) == [entry_id, entry_id]


def test_same_id_of_another_stream_is_handled(
    db: Engine, open_queue: OpenQueue, valkey: redis.Redis, stream: str
):
    queues = [open_queue(name=stream), open_queue(name=f"{stream}:other")]
    for queue in queues:
        valkey.xadd(queue.config.stream_key, {"data": "{}"}, id="1-1")

    reports = [drain(queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox()) for queue in queues]

    assert [report.handled for report in reports] == [1, 1]


def test_same_message_of_another_namespace_is_handled(db: Engine, valkey_queue: RedisStreamsQueue):
    entry_id = valkey_queue.enqueue({})
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox(namespace="one server"))

    redeliver(valkey_queue)
    report = drain(
        valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox(namespace="another server")
    )

    assert (report.handled, notes(db)) == (1, [entry_id, entry_id])


def test_second_record_of_the_same_message_is_none(db: Engine, inbox: Inbox):
    with DbSession(db) as session:
        first = inbox.record(session, QueueMessage("orders", "billing", "1-1", {}))
        with session.connection.begin_nested() as savepoint:
            second = inbox.record(session, QueueMessage("orders", "billing", "1-1", {}))
            savepoint.rollback()

    assert first
    assert second is None


@pytest.mark.parametrize("other", ["Orders", "orders ", "örders"])
def test_names_that_a_collation_takes_for_equal_are_different_messages(db: Engine, inbox: Inbox, other: str):
    recorded = [record(db, inbox, "orders"), record(db, inbox, other), record(db, inbox, "x", other)]

    assert recorded == [True, True, True]


@pytest.mark.parametrize(("stream", "group"), [("a", "b:c"), ("a:b", ":c")])
def test_names_that_differ_in_where_a_colon_stands_are_different_messages(
    db: Engine, inbox: Inbox, stream: str, group: str
):
    record(db, inbox, "a:b:", "c")

    assert record(db, inbox, stream, group)


@pytest.mark.parametrize("name", ["s" * 1000, "orders-🦀-" * 50, "naïve ключ 鍵"])
def test_message_of_a_long_or_exotic_stream_is_handled_once(
    db: Engine, open_queue: OpenQueue, stream: str, name: str
):
    queue = open_queue(name=f"{stream}:{name}", group=name)
    entry_id = queue.enqueue({})

    drain(queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox())
    redeliver(queue)
    report = drain(queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox())

    assert (report.skipped, notes(db)) == (1, [entry_id])


def test_purge_forgets_only_what_is_older(db: Engine, inbox: Inbox):
    for stream in ("old", "young"):
        record(db, inbox, stream)
    grow_older(db, "old", timedelta(hours=1))

    purged = inbox.purge(db, timedelta(minutes=59))

    assert (purged, has(db, inbox, "old"), has(db, inbox, "young")) == (1, False, True)


def test_purge_of_any_age_forgets_everything_before_now(db: Engine, inbox: Inbox):
    for stream in ("old", "older"):
        record(db, inbox, stream)
        grow_older(db, stream, timedelta(milliseconds=1))

    purged = inbox.purge(db, timedelta(0))

    assert (purged, has(db, inbox, "old"), has(db, inbox, "older")) == (2, False, False)


def test_purged_message_is_handled_again(db: Engine, inbox: Inbox, valkey_queue: RedisStreamsQueue):
    entry_id = valkey_queue.enqueue({})
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=inbox)
    grow_older(db, valkey_queue.config.stream_key, timedelta(hours=1))

    inbox.purge(db, timedelta(minutes=59))
    redeliver(valkey_queue)
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=inbox)

    assert notes(db) == [entry_id, entry_id]


def test_purge_of_an_empty_inbox_forgets_nothing(db: Engine, inbox: Inbox):
    assert inbox.purge(db, timedelta(0)) == 0


def test_purge_refuses_a_negative_age(db: Engine, inbox: Inbox):
    record(db, inbox, "orders")

    with pytest.raises(ValueError, match="older_than must not be negative"):
        inbox.purge(db, timedelta(milliseconds=-1))

    assert has(db, inbox, "orders")


def test_table_is_created_before_the_first_message(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    entry_id = valkey_queue.enqueue({})

    consume_one(valkey_queue, write_id, db, Inbox(table="made_in_time"))

    assert inspect(db).has_table("made_in_time")
    assert notes(db) == [entry_id]


def test_inboxes_of_two_tables_know_nothing_of_each_other(db: Engine, inbox: Inbox):
    other = Inbox(table="other_inbox")
    other.create_table(db)
    record(db, inbox, "orders")

    assert not has(db, other, "orders")


def test_a_drain_purges_what_is_older_than_the_inbox_keeps(
    db: Engine, inbox: Inbox, valkey_queue: RedisStreamsQueue
):
    for stream in ("old", "young"):
        record(db, inbox, stream)
    grow_older(db, "old", timedelta(days=31))
    grow_older(db, "young", timedelta(days=29))

    limits = DrainLimits(idle_ms=50)
    drain(valkey_queue, write_id, db, limits, inbox=inbox)
    kept = has(db, inbox, "old")
    drain(valkey_queue, write_id, db, limits, inbox=Inbox(keep_for=timedelta(days=30)))

    assert (kept, has(db, inbox, "old"), has(db, inbox, "young")) == (True, False, True)


def test_a_running_consumer_purges_in_steps_between_its_messages(
    db: Engine, inbox: Inbox, valkey_queue: RedisStreamsQueue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("conquiet.db.inbox.PURGE_STEP", 2)
    monkeypatch.setattr("conquiet.consume.purges.PURGE_STEP", 2)
    monkeypatch.setattr("conquiet.consume.purges._NEXT_S", 0.0)
    for number in range(5):
        record(db, inbox, "old", entry_id=f"1-{number}")
    grow_older(db, "old", timedelta(days=2))
    consumer = QueueConsumer(valkey_queue)
    left = []

    def count(msg: QueueMessage, session: DbSession) -> None:
        left.append(session.scalar(text("SELECT count(*) FROM conquiet_inbox WHERE stream = 'old'")))
        if msg.payload["n"] == 3:
            consumer.stop()

    valkey_queue.enqueue_many([{"n": n} for n in range(4)])
    consumer.run(handler=count, engine=db, inbox=Inbox(keep_for=timedelta(days=1)))

    assert left == [3, 1, 0, 0]


def test_purge_goes_in_steps_to_the_end(db: Engine, inbox: Inbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("conquiet.db.inbox.PURGE_STEP", 2)
    for number in range(5):
        record(db, inbox, "old", entry_id=f"1-{number}")
    grow_older(db, "old", timedelta(days=2))

    assert inbox.purge(db, timedelta(days=1)) == 5


def test_a_purge_that_fails_is_logged_and_fails_no_message(
    db: Engine, valkey_queue: RedisStreamsQueue, caplog: pytest.LogCaptureFixture
):
    class Broken(Inbox):
        def purge_step(self, session: DbSession, older_than: timedelta) -> int:
            session.execute(text("DELETE FROM no_such_table"))
            return 0

    entry_id = valkey_queue.enqueue({})
    limits = DrainLimits(max_messages=1, on_error="raise")
    report = drain(valkey_queue, write_id, db, limits, inbox=Broken(keep_for=timedelta(days=1)))

    assert (report.handled, notes(db)) == (1, [entry_id])
    assert "the inbox could not be purged" in caplog.text


@pytest.mark.parametrize("keep_for", [timedelta(0), timedelta(days=-1), 30])
def test_an_inbox_refuses_to_keep_nothing(keep_for: Any):
    with pytest.raises(ValueError, match="keep_for must be a timedelta above 0"):
        Inbox(keep_for=keep_for)


@pytest.fixture
def tenant(db):
    """An engine whose tables are in a schema of their own, which SQLAlchemy adds to every statement."""
    with db.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant_a"))
    try:
        yield db.execution_options(schema_translate_map={None: "tenant_a"})
    finally:
        with db.begin() as connection:
            cascade = " CASCADE" if db.dialect.name == "postgresql" else ""
            connection.execute(text(f"DROP SCHEMA tenant_a{cascade}"))


@pytest.mark.parametrize("is_batch", [False, True])
@only_on("postgres", "mariadb")
def test_the_inbox_is_in_the_schema_that_the_engine_says(valkey_queue, tenant, is_batch):
    inbox, limits, seen = Inbox(table="inbox_of_a_tenant"), DrainLimits(idle_ms=50), []
    valkey_queue.enqueue_many([{"n": n} for n in range(3)])
    batch = batch_handler(lambda messages, _session: seen.extend(messages))
    handler = batch if is_batch else lambda msg, _session: seen.append(msg)
    drain(valkey_queue, handler, tenant, limits, inbox=inbox)
    redeliver(valkey_queue)

    report = drain(valkey_queue, handler, tenant, limits, inbox=inbox)

    assert (report.skipped, len(seen)) == (3, 3)
    with tenant.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM tenant_a.inbox_of_a_tenant")) == 3
