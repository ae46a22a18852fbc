"""DbSession: what its end does to the transaction and to the connection."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, inspect, literal, select, text
from sqlalchemy.exc import InvalidRequestError, OperationalError

from conquiet import DbError, DbSession
from tests.services import checked_out
from tests.with_databases.conftest import only_on
from tests.with_databases.consuming import in_session
from tests.with_databases.tables import accounts, effects, notes, write


def fail(_session: DbSession) -> None:
    raise ValueError("failed")


def test_clean_end_commits(db: Engine):
    with DbSession(db) as session:
        write(session, "kept")

    assert notes(db) == ["kept"]


def test_nothing_is_visible_to_others_before_the_end(db: Engine):
    with DbSession(db) as session:
        write(session, "kept")
        seen_before_the_end = notes(db)

    assert seen_before_the_end == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_rolls_back_and_gives_the_connection_back(db: Engine, error: type[BaseException]):
    def work(session: DbSession) -> None:
        write(session, "gone")
        raise error

    with pytest.raises(error):
        in_session(db, work)

    assert (notes(db), checked_out(db)) == ([], 0)


def test_exception_leaves_unchanged(db: Engine):
    error = ValueError("the handler's own")

    with pytest.raises(ValueError, match="own") as raised, DbSession(db):
        raise error

    assert raised.value is error
    assert raised.value.__cause__ is None


def test_connection_goes_back_to_the_pool_after_a_commit(db: Engine):
    with DbSession(db) as session:
        write(session, "kept")
        taken = checked_out(db)

    assert (taken, checked_out(db)) == (1, 0)


def test_connection_that_was_handed_in_stays_open(db: Engine):
    with db.connect() as connection:
        with DbSession(connection) as session:
            write(session, "kept")

        assert not connection.closed
        assert not connection.in_transaction()


def test_connection_that_was_handed_in_stays_open_after_an_exception(db: Engine):
    with db.connect() as connection:
        with pytest.raises(ValueError, match="failed"):
            in_session(connection, fail)

        assert not connection.closed
        assert not connection.in_transaction()


def test_connection_that_was_handed_in_serves_one_session_after_another(db: Engine):
    with db.connect() as connection:
        for note in ("first", "second"):
            with DbSession(connection) as session:
                write(session, note)

    assert notes(db) == ["first", "second"]


def test_connection_in_a_transaction_is_refused(db: Engine):
    with db.begin() as connection, pytest.raises(DbError, match="in a transaction already"):
        in_session(connection, fail)


def test_refused_connection_keeps_the_transaction_of_its_owner(db: Engine):
    with db.connect() as connection:
        connection.execute(insert(effects), {"note": "of the owner"})
        with pytest.raises(DbError):
            in_session(connection, fail)
        connection.commit()

    assert notes(db) == ["of the owner"]


def test_use_before_the_block_is_refused(db: Engine):
    session = DbSession(db)

    with pytest.raises(DbError, match=r"before its `with` block began; one DbSession is one transaction"):
        write(session, "too early")


def test_use_after_the_block_is_refused(db: Engine):
    with DbSession(db) as session:
        pass

    with pytest.raises(DbError, match=r"after its `with` block ended; one DbSession is one transaction"):
        write(session, "too late")


def test_second_entry_is_refused(db: Engine):
    with DbSession(db) as session:
        pass

    with pytest.raises(DbError, match="make a new one for each message"):
        session.__enter__()


def test_entry_within_its_own_block_is_refused_and_ends_nothing(db: Engine):
    with DbSession(db) as session:
        with pytest.raises(DbError, match="was entered before"):
            session.__enter__()
        write(session, "kept")

    assert notes(db) == ["kept"]


def test_session_has_no_commit(db: Engine):
    with DbSession(db) as session:
        assert not hasattr(session, "commit")


def test_begin_on_its_connection_is_refused(db: Engine):
    with DbSession(db) as session:
        with pytest.raises(InvalidRequestError):
            session.connection.begin()
        write(session, "kept")

    assert notes(db) == ["kept"]


def test_savepoint_undoes_only_its_own_part(db: Engine):
    with DbSession(db) as session:
        write(session, "kept")
        with session.connection.begin_nested() as savepoint:
            write(session, "undone")
            savepoint.rollback()
        write(session, "kept too")

    assert notes(db) == ["kept", "kept too"]


def test_exception_undoes_a_savepoint_that_was_released(db: Engine):
    def work(session: DbSession) -> None:
        write(session, "gone")
        with session.connection.begin_nested():
            write(session, "gone too")
        fail(session)

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert notes(db) == []


def test_exception_undoes_a_savepoint_that_came_first(db: Engine):
    def work(session: DbSession) -> None:
        with session.connection.begin_nested():
            write(session, "gone")
        fail(session)

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert notes(db) == []


@only_on("sqlite", "postgres")
def test_exception_undoes_a_common_table_expression_that_came_first(db: Engine):
    source = select(literal("gone").label("note")).cte()
    statement = insert(effects).from_select(["note"], select(source.c.note)).add_cte(source)

    def work(session: DbSession) -> None:
        session.execute(statement)
        fail(session)

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert notes(db) == []


@only_on("sqlite", "postgres")
def test_exception_undoes_a_new_table(db: Engine):
    def work(session: DbSession) -> None:
        session.execute(text("CREATE TABLE undone (number INTEGER)"))
        fail(session)

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)

    assert not inspect(db).has_table("undone")


def test_scalar_is_the_first_column_of_the_first_row(db: Engine):
    with DbSession(db) as session:
        session.execute(insert(accounts), [{"id": 1, "balance": 10}, {"id": 2, "balance": 20}])
        found = session.scalar(select(accounts.c.balance).order_by(accounts.c.id))
        missing = session.scalar(select(accounts.c.balance).where(accounts.c.id == 404))

    assert (found, missing) == (10, None)


def test_scalars_are_the_first_column_of_each_row(db: Engine):
    with DbSession(db) as session:
        session.execute(insert(accounts), [{"id": 1, "balance": 10}, {"id": 2, "balance": 20}])
        found = session.scalars(select(accounts.c.balance).order_by(accounts.c.id)).all()

    assert found == [10, 20]


@pytest.mark.parametrize("bind", [None, "sqlite://", object()])
def test_anything_but_an_engine_or_connection_is_refused(bind: Any):
    with pytest.raises(TypeError, match="bind must be a SQLAlchemy Engine or Connection"):
        DbSession(bind)


def test_database_that_is_unavailable_is_a_db_error_with_its_cause(unreachable: Engine):
    with pytest.raises(DbError, match="could not be opened") as raised:
        in_session(unreachable, fail)

    assert isinstance(raised.value.__cause__, OperationalError)
    assert checked_out(unreachable) == 0


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("commit", "the transaction is committed when the handler returns, and rolled back when it raises"),
        ("rollback", "the transaction is committed when the handler returns"),
        ("add", "`session.orm` is an ORM session in the same transaction"),
        ("query", "`session.orm` is an ORM session in the same transaction"),
        ("savepoint", "a DbSession has no savepoint"),
    ],
)
def test_a_method_of_another_library_is_answered_with_what_to_use_here(name: str, remedy: str):
    session = DbSession(create_engine("sqlite://"))

    with pytest.raises(AttributeError, match=remedy):
        getattr(session, name)
    assert not hasattr(session, name)
