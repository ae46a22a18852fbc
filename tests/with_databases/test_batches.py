"""Batches on each database: one transaction, one insert into the inbox that skips what was handled before."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import event, insert, select, text

from conquiet import DbSession, DrainError, DrainLimits, Inbox, QueueMessage, batch_handler, drain
from conquiet.errors import InboxRowLockedError
from tests.conftest import effects
from tests.eventually import HANG_S
from tests.with_databases.conftest import only_on
from tests.with_databases.consuming import pending, redeliver
from tests.with_databases.servers import is_mariadb


def write_all(messages, session) -> None:
    session.execute(insert(effects), [{"entry_id": msg.id, "note": ""} for msg in messages])


def effect_ids(db) -> list[str]:
    with db.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


@contextmanager
def row_locked(db, msg):
    """Within the block another transaction has the inbox row of this message; it is rolled back."""
    with suppress(ZeroDivisionError), DbSession(db) as session:
        assert Inbox().record(session, msg)
        yield
        raise ZeroDivisionError


LIMITS = DrainLimits(batch_size=500, idle_ms=50)


def test_only_the_new_ones_of_a_batch_are_handled(valkey_queue, db):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(600)])
    first = DrainLimits(batch_size=500, max_messages=350)
    drain(valkey_queue, batch_handler(write_all), db, first, inbox=Inbox())
    redeliver(valkey_queue)

    report = drain(valkey_queue, batch_handler(write_all), db, LIMITS, inbox=Inbox())

    assert (report.handled, report.skipped, pending(valkey_queue)) == (250, 350, 0)
    assert sorted(effect_ids(db)) == sorted(ids)


def test_a_batch_and_single_messages_share_one_inbox(valkey_queue, db):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(20)])
    single = DrainLimits(max_messages=7)
    drain(valkey_queue, lambda msg, session: write_all([msg], session), db, single, inbox=Inbox())
    redeliver(valkey_queue)
    drain(valkey_queue, batch_handler(write_all), db, LIMITS, inbox=Inbox())
    redeliver(valkey_queue)

    report = drain(
        valkey_queue,
        lambda msg, session: write_all([msg], session),
        db,
        DrainLimits(idle_ms=50),
        inbox=Inbox(),
    )

    assert (report.handled, report.skipped) == (0, 20)
    assert sorted(effect_ids(db)) == sorted(ids)


def test_a_failed_batch_leaves_neither_effects_nor_inbox_rows_of_what_failed(valkey_queue, db):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(10)])
    fails = [True]

    def handler(messages, session):
        write_all(messages, session)
        if fails and any(msg.payload["n"] == 4 for msg in messages):
            raise ValueError("poison")

    with pytest.raises(DrainError):
        drain(valkey_queue, batch_handler(handler), db, LIMITS, inbox=Inbox())
    assert sorted(effect_ids(db)) == sorted(set(ids) - {ids[4]})
    fails.clear()
    report = drain(valkey_queue, batch_handler(handler), db, LIMITS, inbox=Inbox())

    assert (report.handled, report.skipped) == (1, 0)
    assert sorted(effect_ids(db)) == sorted(ids)


@only_on("postgres", "mariadb")
def test_two_batches_with_the_same_messages_have_their_effects_once(open_queue, db, valkey_queue):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(50)])
    inbox, begun, failed = Inbox(), threading.Barrier(2), []
    inbox.create_table(db)
    messages = valkey_queue.read(50, count=50)

    def handle(mine):
        begun.wait(HANG_S)
        try:
            with DbSession(db) as session:
                _, done = inbox.record_batch(session, mine)
                new = [msg for msg in mine if msg.id not in done]
                if new:
                    write_all(new, session)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=handle, args=(mine,)) for mine in (messages, list(reversed(messages)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert sorted(effect_ids(db)) == sorted(ids)


@pytest.mark.parametrize("inbox", [None, Inbox()])
@only_on("postgres", "mariadb")
def test_messages_handled_at_once_have_their_effects_once(valkey_queue, db, inbox):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(200)])
    limits = DrainLimits(concurrency=4, order_by=False, idle_ms=50)

    report = drain(valkey_queue, lambda msg, session: write_all([msg], session), db, limits, inbox=inbox)

    assert (report.handled, pending(valkey_queue)) == (200, 0)
    assert sorted(effect_ids(db)) == sorted(ids)


@only_on("postgres")
def test_the_inbox_rows_of_a_batch_and_their_lock_timeout_are_one_statement_on_postgresql(db):
    inbox, statements = Inbox(lock_timeout_s=1), []
    inbox.create_table(db)
    event.listen(db, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    messages = [QueueMessage("orders", "billing", f"1-{number}", {}) for number in range(3)]

    with DbSession(db) as session:
        _, known = inbox.record_batch(session, messages)

    assert known == set()
    assert len(statements) == 1


@only_on("postgres", "mariadb")
def test_the_lock_timeout_of_a_batch_is_that_of_its_inbox_rows_alone(db, open_db):
    inbox, within = Inbox(lock_timeout_s=1), []
    inbox.create_table(db)
    messages = [QueueMessage("orders", "billing", f"1-{number}", {}) for number in range(3)]
    setting = text("SELECT @@innodb_lock_wait_timeout" if is_mariadb(db) else "SHOW lock_timeout")
    with db.connect() as connection:
        before = connection.scalar(setting)

    with row_locked(open_db(), messages[1]), pytest.raises(InboxRowLockedError), DbSession(db) as session:
        inbox.record_batch(session, messages)
    # Of the second time every row is there already: nothing is inserted.
    for _ in range(2):
        with DbSession(db) as session:
            inbox.record_batch(session, messages)
            within.append(session.scalar(setting))

    assert within == [before, before]


@only_on("postgres")
def test_a_shorter_lock_timeout_of_the_session_holds_for_a_batch(db, open_db):
    inbox = Inbox(lock_timeout_s=3_600)
    inbox.create_table(db)
    messages = [QueueMessage("orders", "billing", f"1-{number}", {}) for number in range(3)]

    with row_locked(open_db(), messages[1]), db.connect() as connection:
        connection.execute(text("SET lock_timeout = '100ms'"))
        connection.commit()
        with pytest.raises(InboxRowLockedError), DbSession(connection) as session:
            inbox.record_batch(session, messages)
