"""DbSession: a commit that fails, or that the handler took away, is an error and never an ack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Integer, Table, event, insert, text
from sqlalchemy.exc import SQLAlchemyError

from conquiet import (
    DbError,
    DbSession,
    DrainError,
    DrainLimits,
    Inbox,
    QueueMessage,
    RedisStreamsQueue,
    drain,
)
from tests.services import checked_out
from tests.with_databases.conftest import only_on
from tests.with_databases.consuming import ConsumeOne, in_session, pending
from tests.with_databases.servers import is_mariadb, kill, number_of
from tests.with_databases.tables import accounts, effects, notes, write, write_id

Work = Callable[[DbSession], object]

#: With a constraint that is looked at when the transaction commits.
transfers = Table(
    "transfers",
    accounts.metadata,
    Column("account_id", Integer, ForeignKey(accounts.c.id, deferrable=True, initially="DEFERRED")),
)


@pytest.fixture
def doom_commit(db: Engine) -> Work:
    """Does what the database accepts at once, and refuses to commit."""
    if is_mariadb(db):
        # It has no deferred constraints: here the connection ends before the commit.
        return lambda session: kill(db, number_of(session.connection))
    if db.dialect.name == "sqlite":
        event.listen(db, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    transfers.create(db)
    return lambda session: session.execute(insert(transfers), {"account_id": 404})


@pytest.fixture
def write_and_doom(doom_commit: Work) -> Work:
    """Has an effect as well, which must be gone after the commit failed."""

    def work(session: DbSession) -> None:
        write(session, "gone")
        doom_commit(session)

    return work


def write_kept(session: DbSession) -> None:
    write(session, "kept")


def test_failing_commit_is_a_db_error_with_its_cause(db: Engine, doom_commit: Work):
    with pytest.raises(DbError, match=r"was not committed|middle of the commit") as raised:
        in_session(db, doom_commit)

    assert isinstance(raised.value.__cause__, SQLAlchemyError)


def test_failing_commit_leaves_nothing_behind(db: Engine, write_and_doom: Work):
    with pytest.raises(DbError):
        in_session(db, write_and_doom)

    assert notes(db) == []


def test_connection_goes_back_to_the_pool_after_a_failing_commit(db: Engine, doom_commit: Work):
    with pytest.raises(DbError):
        in_session(db, doom_commit)

    assert checked_out(db) == 0


def test_next_session_works_after_a_failing_commit(db: Engine, doom_commit: Work):
    with pytest.raises(DbError):
        in_session(db, doom_commit)
    in_session(db, write_kept)

    assert notes(db) == ["kept"]


def test_next_session_commits_nothing_of_one_whose_commit_failed(db: Engine, write_and_doom: Work):
    with pytest.raises(DbError):
        in_session(db, write_and_doom)
    # The row for whose absence the commit was refused.
    in_session(db, lambda session: session.execute(insert(accounts), {"id": 404, "balance": 0}))

    assert notes(db) == []


def test_connection_that_was_handed_in_serves_the_next_session_after_a_failing_commit(
    db: Engine, write_and_doom: Work
):
    with db.connect() as connection:
        with pytest.raises(DbError):
            in_session(connection, write_and_doom)
        in_session(connection, write_kept)

    assert notes(db) == ["kept"]


def test_interrupt_in_the_middle_of_the_commit_rolls_back(db: Engine):
    @event.listens_for(db, "commit")
    def interrupt(_connection):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_session(db, write_kept)

    assert notes(db) == []


def test_message_stays_pending_when_the_commit_fails(
    db: Engine, write_and_doom: Work, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    valkey_queue.enqueue({})

    with pytest.raises(DbError):
        consume_one(valkey_queue, lambda _msg, session: write_and_doom(session), db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


def test_message_is_handled_at_its_next_delivery_after_a_failing_commit(
    db: Engine, write_and_doom: Work, valkey_queue: RedisStreamsQueue
):
    entry_id = valkey_queue.enqueue({})

    with pytest.raises(DbError):
        drain(
            valkey_queue,
            lambda _msg, session: write_and_doom(session),
            db,
            DrainLimits(max_messages=1, on_error="raise"),
        )
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"))

    assert (pending(valkey_queue), notes(db)) == (0, [entry_id])


def test_inbox_forgets_a_message_whose_commit_failed(
    db: Engine, doom_commit: Work, valkey_queue: RedisStreamsQueue
):
    entry_id = valkey_queue.enqueue({})

    with pytest.raises(DbError):
        drain(
            valkey_queue,
            lambda _msg, session: doom_commit(session),
            db,
            DrainLimits(max_messages=1, on_error="raise"),
            inbox=Inbox(),
        )
    report = drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (report.handled, report.skipped, notes(db)) == (1, 0, [entry_id])


def test_drain_goes_on_after_a_failing_commit_if_asked_to(
    db: Engine, doom_commit: Work, valkey_queue: RedisStreamsQueue
):
    def handler(msg: QueueMessage, session: DbSession) -> None:
        write(session, msg.payload["name"])
        if msg.payload["name"] == "second":
            doom_commit(session)

    valkey_queue.enqueue_many([{"name": "first"}, {"name": "second"}, {"name": "third"}])
    with pytest.raises(DrainError) as raised:
        drain(valkey_queue, handler, db, DrainLimits(max_messages=3, on_error="continue"))

    assert (raised.value.report.handled, raised.value.report.failed) == (2, 1)
    assert (pending(valkey_queue), notes(db)) == (1, ["first", "third"])


@only_on("postgres", "mariadb")
def test_connection_that_ends_within_the_block_is_an_error(db: Engine):
    def work(session: DbSession) -> None:
        write(session, "gone")
        kill(db, number_of(session.connection))
        write(session, "gone too")

    with pytest.raises(SQLAlchemyError):
        in_session(db, work)

    assert (notes(db), checked_out(db)) == ([], 0)


def test_message_stays_pending_when_the_database_is_unavailable(
    unreachable: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    valkey_queue.enqueue({})

    with pytest.raises(DbError):
        consume_one(valkey_queue, write_id, unreachable)

    assert pending(valkey_queue) == 1


def test_database_that_is_unavailable_is_a_db_error_with_an_inbox_too(
    unreachable: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    valkey_queue.enqueue({})

    with pytest.raises(DbError):
        consume_one(valkey_queue, write_id, unreachable, Inbox())


def test_commit_by_the_handler_is_refused(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.connection.commit()

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="a handler must not commit"):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db), checked_out(db)) == (1, [], 0)


def test_refused_commit_that_the_handler_swallows_is_not_acked(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        with suppress(DbError):
            session.connection.commit()

    valkey_queue.enqueue({})
    with pytest.raises(DbError):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db)) == (1, [])


def test_connection_that_was_handed_in_keeps_nothing_of_a_refused_commit(db: Engine):
    def work(session: DbSession) -> None:
        write(session, "gone")
        session.connection.commit()

    with db.connect() as connection:
        with pytest.raises(DbError):
            in_session(connection, work)
        in_session(connection, write_kept)

    assert notes(db) == ["kept"]


def test_connection_that_was_handed_in_may_commit_after_the_block(db: Engine):
    with db.connect() as connection:
        in_session(connection, write_kept)
        connection.execute(insert(effects), {"note": "by its owner"})
        connection.commit()

    assert notes(db) == ["by its owner", "kept"]


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_handler_that_ends_the_transaction_itself_is_told(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne, end: str
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        getattr(session.connection, end)()

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="the handler ended the transaction itself"):
        consume_one(valkey_queue, handler, db)

    assert (pending(valkey_queue), notes(db), checked_out(db)) == (1, [], 0)


def test_what_a_handler_writes_after_it_rolled_back_is_rolled_back_too(db: Engine):
    def work(session: DbSession) -> None:
        session.connection.rollback()
        write(session, "gone")

    with pytest.raises(DbError, match="ended the transaction itself"):
        in_session(db, work)

    assert notes(db) == []


@pytest.mark.parametrize("statement", ["COMMIT", "rollback", " BEGIN", "Start Transaction", "END"])
def test_transaction_statement_of_the_handler_is_refused_and_nothing_is_lost(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne, statement: str
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.execute(text(statement))

    entry_id = valkey_queue.enqueue({})
    with pytest.raises(DbError, match="must not begin or end transactions"):
        consume_one(valkey_queue, handler, db, Inbox())
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (pending(valkey_queue), notes(db)) == (0, [entry_id])


@only_on("mariadb")
@pytest.mark.parametrize(
    "statement", ["CREATE TABLE more (n INT)", "TRUNCATE TABLE notes", "drop table notes"]
)
def test_statement_that_commits_implicitly_is_refused_and_nothing_is_lost(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne, statement: str
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.execute(text(statement))

    entry_id = valkey_queue.enqueue({})
    with pytest.raises(DbError, match="would commit the handler's transaction"):
        consume_one(valkey_queue, handler, db, Inbox())
    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (pending(valkey_queue), notes(db)) == (0, [entry_id])


@only_on("sqlite")
def test_a_comment_of_sqlite_ends_at_its_first_end(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.connection.exec_driver_sql("/* a /* b */ COMMIT")
        write(session, "gone, too")

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="must not begin or end transactions"):
        consume_one(valkey_queue, handler, db, Inbox())

    assert (pending(valkey_queue), notes(db)) == (1, [])


@pytest.mark.parametrize("statement", ["/* service */ COMMIT", "-- why\nCOMMIT", "; commit"])
def test_end_behind_a_comment_is_refused(db: Engine, valkey_queue: RedisStreamsQueue, statement: str):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "gone")
        session.execute(text(statement))

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="must not begin or end transactions"):
        drain(valkey_queue, handler, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (pending(valkey_queue), notes(db)) == (1, [])


def test_message_whose_handler_committed_past_the_guard_and_failed_is_handled_again(
    db: Engine, valkey_queue: RedisStreamsQueue
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.connection.connection.commit()
        raise ValueError("failed")

    entry_id = valkey_queue.enqueue({})
    with pytest.raises(ValueError, match="failed"):
        drain(valkey_queue, handler, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())
    report = drain(valkey_queue, write_id, db, DrainLimits(max_messages=1, on_error="raise"), inbox=Inbox())

    assert (report.handled, report.skipped, notes(db)) == (1, 0, [entry_id])


def test_text_that_only_looks_like_transaction_control_is_executed(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.connection.exec_driver_sql("INSERT INTO effects (note) VALUES ('shipped; end of story')")

    valkey_queue.enqueue({})
    consume_one(valkey_queue, handler, db, Inbox())

    assert (pending(valkey_queue), notes(db)) == (0, ["shipped; end of story"])


def test_a_body_of_statements_is_executed(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        insert_note = "INSERT INTO effects (note) VALUES ('by the body')"
        if is_mariadb(db):
            session.connection.exec_driver_sql(f"IF 1 THEN {insert_note}; SELECT 1; END IF")
        elif db.dialect.name == "sqlite":
            body = f"{insert_note}; SELECT 1 AS [end; commit]"
            trigger = f"CREATE TRIGGER copy AFTER INSERT ON accounts BEGIN {body}; END"
            session.connection.exec_driver_sql(trigger)
            session.execute(insert(accounts), {"id": 1, "balance": 0})
            session.connection.exec_driver_sql("DROP TRIGGER copy")
        else:
            session.connection.exec_driver_sql(f"DO $$ BEGIN {insert_note}; END $$")

    valkey_queue.enqueue({})
    consume_one(valkey_queue, handler, db, Inbox())

    assert (pending(valkey_queue), notes(db)) == (0, ["by the body"])


@pytest.fixture
def procedure(db: Engine) -> Iterator[Callable[[str], None]]:
    """Makes the procedure `settle` with a body."""

    def make(body: str) -> None:
        with db.begin() as connection:
            connection.exec_driver_sql(f"CREATE PROCEDURE settle() BEGIN {body} END")

    yield make
    with db.begin() as connection:
        connection.exec_driver_sql("DROP PROCEDURE IF EXISTS settle")


@only_on("mariadb")
@pytest.mark.parametrize("writes_before", [True, False])
@pytest.mark.parametrize("is_nested", [True, False])
def test_a_procedure_is_called_in_the_transaction(
    db: Engine,
    valkey_queue: RedisStreamsQueue,
    procedure: Callable[[str], None],
    writes_before: bool,
    is_nested: bool,
):
    procedure("INSERT INTO effects (note) VALUES ('by the procedure'); SELECT 1;")

    def handler(_msg: QueueMessage, session: DbSession) -> None:
        if writes_before:
            write(session, "before")
        if is_nested:
            with suppress(ValueError), session.connection.begin_nested():
                session.execute(text("CALL settle()")).all()
                raise ValueError("undo the first call")
        session.execute(text("CALL settle()")).all()

    valkey_queue.enqueue({})
    drain(valkey_queue, handler, db, DrainLimits(max_messages=1, on_error="raise"))

    expected = ["before", "by the procedure"] if writes_before else ["by the procedure"]
    assert (pending(valkey_queue), notes(db)) == (0, expected)


@only_on("mariadb")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "START TRANSACTION"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_procedure_that_ends_the_transaction_is_found_and_the_message_is_not_acked(
    db: Engine,
    valkey_queue: RedisStreamsQueue,
    procedure: Callable[[str], None],
    consume_one: ConsumeOne,
    end: str,
    is_first: bool,
):
    procedure(f"{end}; INSERT INTO effects (note) VALUES ('gone');")

    def handler(_msg: QueueMessage, session: DbSession) -> None:
        if not is_first:
            session.execute(insert(accounts), {"id": 1, "balance": 0})
        session.execute(text("CALL settle()"))
        write(session, "gone, too")

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="ended or undone before its commit"):
        consume_one(valkey_queue, handler, db, Inbox())

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("mariadb")
@pytest.mark.parametrize(
    "statement", ["BEGIN NOT ATOMIC COMMIT; END", "REPEAT COMMIT; UNTIL 1 END REPEAT", "BACKUP UNLOCK"]
)
def test_a_statement_that_the_server_alone_can_judge_is_found_when_it_ended_the_transaction(
    db: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne, statement: str
):
    def handler(_msg: QueueMessage, session: DbSession) -> None:
        session.connection.exec_driver_sql(statement)
        write(session, "gone")

    valkey_queue.enqueue({})
    with pytest.raises(DbError, match="ended or undone before its commit"):
        consume_one(valkey_queue, handler, db, Inbox())

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("mariadb")
@pytest.mark.parametrize("fails", [True, False])
def test_a_connection_that_a_procedure_left_in_autocommit_mode_is_not_used_again(
    db: Engine, procedure: Callable[[str], None], fails: bool
):
    procedure("SET autocommit = 1;")

    def work(session: DbSession) -> None:
        session.execute(text("CALL settle()"))
        if fails:
            raise ValueError("failed")

    with pytest.raises((DbError, ValueError)):
        in_session(db, work)
    in_session(db, write_kept)

    assert notes(db) == ["kept"]
