"""A handler that swallows an SQL error and returns as if all were well: acked only if all is well."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, StatementError

from conquiet import DbError, DbSession, DrainError, DrainLimits, QueueMessage, RedisStreamsQueue, drain
from tests.services import checked_out
from tests.with_databases.conftest import OpenDb, only_on
from tests.with_databases.consuming import ConsumeOne, pending
from tests.with_databases.servers import await_lock_wait, kill, number_of
from tests.with_databases.tables import accounts, add_accounts, balances, effects, notes, write, write_id
from tests.with_databases.threads import Running, await_event

UNDONE = "ended or undone before its commit"


def add_clashing_account(session: DbSession, how: str = "") -> None:
    statement = insert(accounts).prefix_with(how) if how else insert(accounts)
    session.execute(statement, {"id": 1, "balance": 10})


def set_balance(session: DbSession, number: int) -> None:
    session.execute(update(accounts).where(accounts.c.id == number).values(balance=10))


@only_on("postgres")
def test_aborted_transaction_of_postgres_is_not_acked(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        with suppress(IntegrityError):
            add_clashing_account(session)

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    with pytest.raises(DbError, match=UNDONE):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("mariadb")
def test_deadlock_of_mariadb_is_not_acked(
    db: Engine, open_db: OpenDb, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    rival_has_second, handler_has_first = Event(), Event()

    def rival() -> None:
        with open_db().begin() as connection:
            # Many rows: of two transactions MariaDB undoes the one that wrote less.
            connection.execute(insert(effects), [{"note": "of the rival"}] * 100)
            connection.execute(update(accounts).where(accounts.c.id == 2).values(balance=20))
            rival_has_second.set()
            await_event(handler_has_first)
            connection.execute(update(accounts).where(accounts.c.id == 1).values(balance=20))

    def handler(_msg: QueueMessage, session: DbSession) -> None:
        await_event(rival_has_second)
        set_balance(session, 1)
        handler_has_first.set()
        await_lock_wait(db)
        with pytest.raises(OperationalError, match="1213"):
            set_balance(session, 2)
        write(session, "half of it")

    add_accounts(db, 1, 2)
    valkey_queue.enqueue({})
    running = Running(rival)
    with pytest.raises(DbError, match=UNDONE):
        consume_one(valkey_queue, handler, db)
    running.result()

    assert (pending(valkey_queue), balances(db)) == (1, {1: 20, 2: 20})
    assert "half of it" not in notes(db)


@only_on("mariadb")
def test_record_that_changed_since_it_was_read_is_not_acked(
    db: Engine, open_db: OpenDb, valkey_queue: RedisStreamsQueue, consume_plainly: ConsumeOne
):
    @event.listens_for(db, "connect")
    def isolate_snapshots(connection, _record):
        try:
            connection.query("SET SESSION innodb_snapshot_isolation = ON")
        except connection.OperationalError:
            pytest.skip("this MariaDB or MySQL has no innodb_snapshot_isolation")

    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.scalar(select(accounts.c.balance))
        with open_db().begin() as connection:
            connection.execute(update(accounts).values(balance=20))
        with pytest.raises(DBAPIError, match="1020"):
            set_balance(session, 1)
        write(session, "half of it")

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    with pytest.raises(DbError, match=UNDONE):
        consume_plainly(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("sqlite")
def test_rollback_by_a_conflict_of_sqlite_is_not_acked(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        with suppress(IntegrityError):
            add_clashing_account(session, "OR ROLLBACK")
        write(session, "half of it")

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    with pytest.raises(DbError, match=UNDONE):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("sqlite")
def test_interrupted_write_of_sqlite_is_not_acked(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_plainly: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        driver: Any = session.connection.connection.dbapi_connection
        write(session, "gone")
        driver.set_progress_handler(lambda: True, 1)
        with pytest.raises(OperationalError, match="interrupted"):
            write(session, "gone too")
        driver.set_progress_handler(None, 0)
        write(session, "half of it")

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match=UNDONE):
        consume_plainly(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("postgres", "mariadb")
def test_connection_that_was_lost_is_not_acked(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        kill(db, number_of(session.connection))
        with suppress(DBAPIError):
            write(session, "gone too")

    valkey_queue.enqueue({})
    with pytest.raises(DbError):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("sqlite")
def test_undone_transaction_is_forgotten_with_its_message(db: Engine, valkey_queue: RedisStreamsQueue):
    def handler(msg: QueueMessage, session: DbSession) -> None:
        write(session, msg.payload["name"])
        if msg.payload["name"] == "first":
            with suppress(IntegrityError):
                add_clashing_account(session, "OR ROLLBACK")

    add_accounts(db, 1)
    valkey_queue.enqueue_many([{"name": "first"}, {"name": "second"}])
    with pytest.raises(DrainError):
        drain(valkey_queue, handler, db, DrainLimits(max_messages=2, on_error="continue"))

    assert (pending(valkey_queue), notes(db)) == (1, ["second"])


@only_on("sqlite", "mariadb")
def test_refused_row_undoes_only_itself(db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "before")
        with suppress(IntegrityError):
            add_clashing_account(session)
        write(session, "after")

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (0, ["after", "before"])


def test_refused_row_within_a_savepoint_undoes_only_the_savepoint(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "before")
        with suppress(IntegrityError), session.connection.begin_nested():
            add_clashing_account(session)
        write(session, "after")

    add_accounts(db, 1)
    valkey_queue.enqueue({})
    consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (0, ["after", "before"])


@only_on("sqlite", "mariadb")
def test_statement_that_cannot_run_undoes_nothing(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(msg: QueueMessage, session: DbSession) -> None:
        with suppress(OperationalError, ProgrammingError):
            session.execute(text("SELECT 1 FROM no_such_table"))
        write_id(msg, session)

    entry_id = valkey_queue.enqueue({})
    consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (0, [entry_id])


@only_on("sqlite", "postgres")
@pytest.mark.parametrize("statement", ["SELECT :value", "INSERT INTO effects (note) VALUES (:value)"])
def test_parameter_that_the_driver_refuses_is_its_own_error(db: Engine, statement: str):
    with pytest.raises(StatementError), DbSession(db) as session:
        session.execute(text(statement), {"value": object()})

    assert checked_out(db) == 0
