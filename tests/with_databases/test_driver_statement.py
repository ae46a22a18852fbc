"""The inbox row by the driver's cursor: listeners of the engine see it, and its errors are SQLAlchemy's."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from conquiet import DbSession, Inbox, QueueMessage
from conquiet.db import is_connection_lost
from tests.with_databases.conftest import only_on
from tests.with_databases.servers import kill, number_of


@pytest.fixture
def inbox(db):
    made = Inbox()
    made.create_table(db)
    return made


def message(entry_id: str) -> QueueMessage:
    return QueueMessage("orders", "billing", entry_id, {})


def test_a_listener_of_the_engine_sees_the_insert_into_the_inbox(db, inbox):
    seen = []
    event.listen(db, "before_cursor_execute", lambda _c, _cursor, statement, *_: seen.append(statement))

    with DbSession(db) as session:
        assert inbox.record(session, message("1-1"))

    assert len([statement for statement in seen if "INSERT INTO conquiet_inbox" in statement]) == 1


def test_a_row_that_is_there_is_found_however_its_insert_is_executed(db, inbox):
    with DbSession(db) as session:
        assert inbox.record(session, message("1-1"))

    with db.connect() as connection:
        session = DbSession(connection).__enter__()
        assert inbox.record(session, message("1-1")) is None
        session.__exit__(ZeroDivisionError, ZeroDivisionError(), None)

    with DbSession(db) as session:
        assert inbox.record(session, message("1-2"))


@only_on("postgres", "mariadb")
def test_after_a_lost_connection_the_pool_hands_out_none_of_the_older_ones(db, open_db, inbox):
    with db.connect() as kept, db.connect() as older:
        lost, of_older = number_of(kept), number_of(older)
        kept.rollback()
        older.close()
        kill(open_db(), lost)

        with pytest.raises(DBAPIError) as raised, DbSession(kept) as session:
            inbox.record(session, message("1-1"))

        assert raised.value.connection_invalidated
        assert is_connection_lost(raised.value)
    with db.connect() as fresh:
        assert number_of(fresh) not in (lost, of_older)


def record_in(connection, *entry_ids) -> None:
    """Each in a transaction of its own."""
    for entry_id in entry_ids:
        with DbSession(connection) as session:
            assert Inbox().record(session, message(entry_id))


@only_on("postgres")
@pytest.mark.parametrize("is_known", [False, True])
def test_on_postgresql_an_inbox_row_has_no_round_trip_of_its_own(db, inbox, tmp_path, is_known):
    record_in(db, "1-0")
    db.dispose()
    traced = (tmp_path / "trace").open("w+")
    with db.connect() as connection:
        if is_known:
            with suppress(ZeroDivisionError), DbSession(connection) as session:
                assert inbox.record(session, message("1-0")) is None
                raise ZeroDivisionError
        record_in(connection, "1-1")
        pgconn = connection.connection.driver_connection.pgconn
        pgconn.trace(traced.fileno())
        record_in(connection, "1-2")
        pgconn.untrace()

    traced.seek(0)
    replies = [line for line in traced if "ReadyForQuery" in line]
    traced.close()
    # Of the BEGIN with the row, and of the COMMIT.
    assert len(replies) == 2


@only_on("postgres")
@pytest.mark.parametrize("statement", ["DEALLOCATE ALL", "DISCARD PLANS"])
def test_an_inbox_row_is_written_after_its_prepared_statement_is_gone(db, inbox, statement):
    with db.connect() as connection:
        record_in(connection, "1-1", "1-2")
        connection.execute(text(statement))
        connection.commit()

        record_in(connection, "1-3", "1-4")

        assert connection.scalar(text("SELECT count(*) FROM conquiet_inbox")) == 4


@only_on("postgres")
def test_an_inbox_row_is_written_after_a_handler_that_failed(db, inbox):
    with db.connect() as connection:
        record_in(connection, "1-1")
        with suppress(ZeroDivisionError), DbSession(connection) as session:
            inbox.record(session, message("1-2"))
            raise ZeroDivisionError

        record_in(connection, "1-2")


@only_on("postgres")
@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
def test_the_isolation_level_of_the_engine_is_that_of_the_transaction_with_an_inbox_row(db, inbox, level):
    with DbSession(db.execution_options(isolation_level=level)) as session:
        inbox.record(session, message("1-1"))

        assert session.scalar(text("SHOW transaction_isolation")) == level.lower()


@only_on("postgres")
def test_an_inbox_row_is_written_where_prepared_statements_are_not_allowed(db, inbox):
    with db.connect() as connection:
        connection.connection.driver_connection.prepare_threshold = None

        record_in(connection, "1-1", "1-2")

        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0


@only_on("postgres")
def test_an_inbox_row_is_written_where_a_statement_of_its_name_is_prepared_already(db, open_db, inbox):
    with db.connect() as first:
        record_in(first, "1-1")
        name = first.scalar(text("SELECT name FROM pg_prepared_statements WHERE name LIKE 'conquiet%'"))
    # As behind a pooler, which gives this connection's session to another client.
    with open_db().connect() as other:
        other.exec_driver_sql(f"PREPARE {name} AS SELECT 1")
        other.commit()

        record_in(other, "1-2", "1-3")
