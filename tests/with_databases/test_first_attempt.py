"""The first attempt of a message does not wait for a frozen worker without end, and costs no round trip."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from conquiet import DbSession, Inbox, QueueMessage
from conquiet.db import is_connection_lost
from conquiet.errors import InboxRowLockedError
from tests.with_databases.conftest import only_on
from tests.with_databases.test_frozen_owner import frozen

pytestmark = only_on("postgres")


@pytest.mark.parametrize("own", ["0", "50ms", "2h"])
def test_a_first_attempt_waits_no_longer_than_that_and_its_handler_has_the_timeout_of_the_session(
    db, open_db, own
):
    inbox, within = Inbox(lock_timeout_s=1), []
    locked, free = (QueueMessage("orders", "billing", entry_id, {}, 1) for entry_id in ("2-1", "2-2"))

    with frozen(open_db(), locked):
        for msg in (locked, free):
            with suppress(InboxRowLockedError), DbSession(db) as session:
                session.execute(text(f"SET LOCAL lock_timeout = '{own}'"))
                inbox.record(session, msg)
                within.append((msg.id, session.scalar(text("SHOW lock_timeout"))))

    assert within == [("2-2", own)]


def test_a_first_attempt_is_written_in_one_statement(db):
    inbox, statements = Inbox(lock_timeout_s=1), []
    inbox.create_table(db)
    event.listen(db, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))

    with DbSession(db) as session:
        assert inbox.record(session, QueueMessage("orders", "billing", "3-1", {}, 1))

    assert len(statements) == 1


def test_an_error_of_the_first_statement_is_one_of_sqlalchemy_and_leaves_the_connection_usable(db):
    inbox, msg = Inbox(table="missing_inbox"), QueueMessage("orders", "billing", "5-1", {}, 1)

    with db.connect() as connection:
        with pytest.raises(ProgrammingError, match="missing_inbox"), DbSession(connection) as session:
            inbox.record(session, msg)
        inbox.create_table(db)
        with DbSession(connection) as session:
            assert inbox.record(session, msg)

        assert not connection.invalidated


def test_a_connection_that_is_lost_in_the_middle_of_the_first_statement_is_seen_as_lost(db):
    inbox = Inbox()
    inbox.create_table(db)
    with db.connect() as connection, db.connect() as other:
        own = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.rollback()
        other.execute(text("SELECT pg_terminate_backend(:own, 5000)"), {"own": own})

        with pytest.raises(OperationalError) as raised, DbSession(connection) as session:
            inbox.record(session, QueueMessage("orders", "billing", "6-1", {}, 1))

    assert is_connection_lost(raised.value)
