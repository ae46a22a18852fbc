"""The inbox row by the driver's cursor: listeners of the engine see it, and its errors are SQLAlchemy's."""

from __future__ import annotations

import pytest
from sqlalchemy import event
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
