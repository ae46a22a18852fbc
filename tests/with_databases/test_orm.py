"""DbSession.orm: an ORM session that lives and dies with the transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError

from conquiet import DbError, DbSession, QueueMessage, RedisStreamsQueue
from tests.services import checked_out
from tests.with_databases.consuming import ConsumeOne, in_session, pending
from tests.with_databases.tables import Account, accounts, add_accounts, balances


def test_new_objects_are_flushed_before_the_commit(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))

    assert balances(db) == {1: 10}


def test_changed_objects_are_flushed_before_the_commit(db: Engine):
    add_accounts(db, 1)

    with DbSession(db) as session:
        session.orm.get_one(Account, 1).balance = 10

    assert balances(db) == {1: 10}


def test_orm_sees_what_core_wrote(db: Engine):
    with DbSession(db) as session:
        session.execute(insert(accounts), {"id": 1, "balance": 10})
        found = session.orm.get_one(Account, 1).balance

    assert found == 10


def test_core_sees_what_the_orm_flushed(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))
        session.orm.flush()
        found = session.scalar(select(accounts.c.balance))

    assert found == 10


def test_orm_is_the_same_session_each_time(db: Engine):
    with DbSession(db) as session:
        assert session.orm is session.orm


@pytest.mark.parametrize("end", ["flush", "commit"])
def test_exception_rolls_back_what_the_orm_flushed_or_committed(db: Engine, end: str):
    def work(session: DbSession) -> None:
        session.orm.add(Account(1, 10))
        getattr(session.orm, end)()
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert balances(db) == {}


def test_work_after_a_commit_of_the_orm_is_in_the_same_transaction(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))
        session.orm.commit()
        session.orm.add(Account(2, 20))

    assert balances(db) == {1: 10, 2: 20}


def test_close_of_the_orm_does_not_end_the_transaction(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))
        session.orm.flush()
        session.orm.close()

    assert balances(db) == {1: 10}


def test_rollback_of_the_orm_is_an_error_and_not_an_ack(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.orm.add(Account(1, 10))
        session.orm.flush()
        session.orm.rollback()
        session.orm.add(Account(2, 20))

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="the handler ended the transaction itself"):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), balances(db)) == (1, {})


def test_rollback_of_the_orm_before_its_first_flush_is_an_error_and_not_an_ack(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.orm.add(Account(1, 10))
        session.orm.rollback()

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="the handler ended the transaction itself"):
        consume_one(valkey_queue, handler, db)

    assert pending(valkey_queue) == 1


def test_failing_flush_is_a_db_error_with_its_cause(db: Engine):
    add_accounts(db, 1)

    with (
        pytest.raises(DbError, match="the transaction was not committed") as raised,
        DbSession(db) as session,
    ):
        session.orm.add_all([Account(1, 10), Account(2, 20)])

    assert isinstance(raised.value.__cause__, IntegrityError)


def test_message_stays_pending_when_the_flush_fails(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    add_accounts(db, 1)
    valkey_queue.enqueue({})

    with pytest.raises(DbError):
        consume_one(valkey_queue, lambda _msg, session: session.orm.add(Account(1, 10)), db)

    assert (pending(valkey_queue), balances(db)) == (1, {1: 0})


def test_failing_flush_that_the_handler_swallows_is_an_error_and_not_an_ack(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.orm.add(Account(2, 20))
        session.orm.flush()
        session.orm.add(Account(1, 10))
        with pytest.raises(IntegrityError):
            session.orm.flush()

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    with pytest.raises(DbError):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), balances(db)) == (1, {1: 0})


def test_failing_flush_within_a_savepoint_of_the_orm_may_be_swallowed(db: Engine):
    add_accounts(db, 1)

    with DbSession(db) as session:
        session.orm.add(Account(2, 20))
        session.orm.flush()
        with pytest.raises(IntegrityError), session.orm.begin_nested():
            session.orm.add(Account(1, 10))

    assert balances(db) == {1: 0, 2: 20}


def test_orm_before_the_block_is_refused(db: Engine):
    session = DbSession(db)

    with pytest.raises(DbError, match="before its `with` block began"):
        _ = session.orm


def test_orm_after_the_block_is_refused(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))

    with pytest.raises(DbError, match="after its `with` block ended"):
        _ = session.orm


def test_connection_goes_back_to_the_pool_after_the_orm_was_used(db: Engine):
    with DbSession(db) as session:
        session.orm.add(Account(1, 10))

    assert checked_out(db) == 0
