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
from tests.with_databases.servers import is_mariadb
from tests.with_databases.test_frozen_owner import frozen, own_setting


class _LeftError(Exception):
    pass


@only_on("postgres", "mariadb")
def test_a_first_attempt_waits_no_longer_than_that(db, open_db):
    # Of a server that lets a transaction wait for longer than any test.
    inbox, msg = Inbox(lock_timeout_s=1), QueueMessage("orders", "billing", "2-1", {}, 1)
    longest = "SET innodb_lock_wait_timeout = 3600" if is_mariadb(db) else "SET LOCAL lock_timeout = 0"

    with frozen(open_db(), msg), suppress(_LeftError), DbSession(db) as session:
        session.execute(text(longest))
        with pytest.raises(InboxRowLockedError, match="2-1"):
            inbox.record(session, msg)
        raise _LeftError


@pytest.mark.parametrize("own", ["0", "50ms", "2h"])
@only_on("postgres")
def test_the_handler_of_a_first_attempt_has_the_timeout_of_the_session(db, open_db, own):
    inbox, within = Inbox(lock_timeout_s=1), []
    locked, free = (QueueMessage("orders", "billing", entry_id, {}, 1) for entry_id in ("2-1", "2-2"))

    with frozen(open_db(), locked):
        for msg in (locked, free):
            with suppress(InboxRowLockedError), DbSession(db) as session:
                session.execute(text(f"SET LOCAL lock_timeout = '{own}'"))
                inbox.record(session, msg)
                within.append((msg.id, session.scalar(text("SHOW lock_timeout"))))

    assert within == [("2-2", own)]


@pytest.mark.parametrize("own", [1, 7, 3600])
@only_on("mariadb")
def test_the_handler_of_a_first_attempt_has_the_lock_wait_timeout_of_the_session(db, own):
    inbox, within = Inbox(lock_timeout_s=5), []
    inbox.create_table(db)

    with DbSession(db) as session:
        session.execute(text(f"SET innodb_lock_wait_timeout = {own}"))
        inbox.record(session, QueueMessage("orders", "billing", "2-2", {}, 1))
        within.append(session.scalar(text("SELECT @@innodb_lock_wait_timeout")))
        session.execute(text("SET innodb_lock_wait_timeout = DEFAULT"))

    assert within == [own]
    assert own_setting(db) == "50"


@only_on("postgres", "mariadb")
def test_a_first_attempt_is_written_in_one_statement(db):
    inbox, statements = Inbox(lock_timeout_s=1), []
    inbox.create_table(db)
    event.listen(db, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))

    with DbSession(db) as session:
        assert inbox.record(session, QueueMessage("orders", "billing", "3-1", {}, 1))

    assert len(statements) == 1


@only_on("postgres")
def test_an_error_of_the_first_statement_is_one_of_sqlalchemy_and_leaves_the_connection_usable(db):
    inbox, msg = Inbox(table="missing_inbox"), QueueMessage("orders", "billing", "5-1", {}, 1)

    with db.connect() as connection:
        with pytest.raises(ProgrammingError, match="missing_inbox"), DbSession(connection) as session:
            inbox.record(session, msg)
        inbox.create_table(db)
        with DbSession(connection) as session:
            assert inbox.record(session, msg)

        assert not connection.invalidated


@only_on("postgres")
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
