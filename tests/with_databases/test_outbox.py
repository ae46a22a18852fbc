"""Outbox: a message is there if, and only if, the transaction that wrote it committed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from conquiet import DbError, DbSession, DrainLimits, Outbox, QueueMessage, RedisStreamsQueue, drain
from conquiet.payload import encode_payload
from tests.with_databases.consuming import in_session, pending
from tests.with_databases.tables import notes, write

REFUSED_PAYLOADS = [
    pytest.param({"value": (1, 2)}, TypeError, id="tuple"),
    pytest.param({"value": b"bytes"}, TypeError, id="bytes"),
    pytest.param({"value": float("nan")}, ValueError, id="nan"),
]


def test_message_waits_after_the_commit(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        outbox.enqueue(session, "orders", {"n": 1})

    assert outbox.waiting(db) == 1


def test_message_is_gone_with_its_transaction(db: Engine, outbox: Outbox):
    def work(session: DbSession) -> None:
        outbox.enqueue(session, "orders", {"n": 1})
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert outbox.waiting(db) == 0


def test_message_does_not_wait_before_the_commit(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        outbox.enqueue(session, "orders", {"n": 1})
        waiting = outbox.waiting(db)

    assert waiting == 0


def test_handled_message_leaves_its_effect_and_its_outgoing_message(
    db: Engine, outbox: Outbox, valkey_queue: RedisStreamsQueue
):
    def handler(msg: QueueMessage, session: DbSession) -> None:
        write(session, "paid")
        outbox.enqueue(session, "shipping", msg.payload)

    valkey_queue.enqueue({"order": 1})
    drain(valkey_queue, handler, db, DrainLimits(max_messages=1))

    assert (pending(valkey_queue), notes(db), outbox.waiting(db)) == (0, ["paid"], 1)


def test_failed_message_leaves_neither_effect_nor_outgoing_message(
    db: Engine, outbox: Outbox, valkey_queue: RedisStreamsQueue
):
    def handler(msg: QueueMessage, session: DbSession) -> None:
        write(session, "paid")
        outbox.enqueue(session, "shipping", msg.payload)
        raise ValueError("failed")

    valkey_queue.enqueue({"order": 1})
    with pytest.raises(ValueError, match="failed"):
        drain(valkey_queue, handler, db, DrainLimits(max_messages=1, on_error="raise"))

    assert (pending(valkey_queue), notes(db), outbox.waiting(db)) == (1, [], 0)


@pytest.mark.parametrize(("payload", "error"), REFUSED_PAYLOADS)
def test_payload_that_would_not_come_back_equal_is_refused_in_the_handler(
    db: Engine, outbox: Outbox, payload: Any, error: type[Exception]
):
    def work(session: DbSession) -> None:
        write(session, "gone")
        outbox.enqueue(session, "orders", payload)

    with pytest.raises(error, match="payload"):
        in_session(db, work)

    assert (notes(db), outbox.waiting(db)) == ([], 0)


@pytest.mark.parametrize("stream", ["", None, b"orders"])
def test_stream_without_a_name_is_refused_in_the_handler(db: Engine, outbox: Outbox, stream: Any):
    with pytest.raises((TypeError, ValueError), match=r"stream must (be a str|not be empty)"):
        in_session(db, lambda session: outbox.enqueue(session, stream, {}))

    assert outbox.waiting(db) == 0


def test_oldest_rows_come_first(db: Engine, outbox: Outbox):
    for number in range(5):
        with DbSession(db) as session:
            outbox.enqueue(session, "orders", {"n": number})

    with DbSession(db) as session:
        rows = outbox.lock_oldest(session, 3)

    assert [row.data for row in rows] == [encode_payload({"n": number}) for number in range(3)]


def test_removed_rows_wait_no_more(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        for number in range(3):
            outbox.enqueue(session, "orders", {"n": number})

    with DbSession(db) as session:
        outbox.remove(session, [row.id for row in outbox.lock_oldest(session, 2)])

    assert outbox.waiting(db) == 1


def test_removing_no_rows_removes_nothing(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        outbox.enqueue(session, "orders", {})
        outbox.remove(session, [])

    assert outbox.waiting(db) == 1


def test_id_of_a_removed_row_is_not_given_again(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        outbox.enqueue(session, "orders", {})
        [first] = outbox.lock_oldest(session, 1)
        outbox.remove(session, [first.id])

    with DbSession(db) as session:
        outbox.enqueue(session, "orders", {})
        [second] = outbox.lock_oldest(session, 1)

    assert second.id > first.id


def test_session_after_its_block_is_refused(db: Engine, outbox: Outbox):
    with DbSession(db) as session:
        pass

    with pytest.raises(DbError, match="after its `with` block ended"):
        outbox.enqueue(session, "orders", {})
