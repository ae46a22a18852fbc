"""DbSession: an engine on which a rollback undoes nothing is refused."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine, event

from conquiet import DbError, DbSession, RedisStreamsQueue
from tests.services import checked_out
from tests.with_databases.conftest import only_on
from tests.with_databases.consuming import ConsumeOne, in_session, pending
from tests.with_databases.tables import notes, write, write_id


@pytest.fixture
def autocommitting(db: Engine) -> Engine:
    """A twin of `db`, over the same pool, that commits each statement."""
    return db.execution_options(isolation_level="AUTOCOMMIT")


@pytest.fixture
def explicit_begin(db: Engine) -> Engine:
    """SQLAlchemy's recipe for SQLite: the driver never begins a transaction, the engine always does."""
    event.listen(db, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(db, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return db


def write_kept(session: DbSession) -> None:
    write(session, "kept")


def test_engine_made_with_autocommit_is_refused(database_url: str):
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")

    with pytest.raises(DbError, match="AUTOCOMMIT mode, where a rollback undoes nothing"):
        in_session(engine, write_kept)

    assert checked_out(engine) == 0
    engine.dispose()


def test_engine_with_the_option_autocommit_is_refused(db: Engine, autocommitting: Engine):
    with pytest.raises(DbError, match="AUTOCOMMIT"):
        in_session(autocommitting, write_kept)

    assert (notes(db), checked_out(db)) == ([], 0)


def test_connection_with_the_option_autocommit_is_refused(db: Engine):
    with db.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(DbError, match="AUTOCOMMIT"):
            in_session(connection, write_kept)

        assert not connection.in_transaction()


def test_engine_is_of_use_after_its_autocommitting_twin_was_refused(db: Engine, autocommitting: Engine):
    with pytest.raises(DbError):
        in_session(autocommitting, write_kept)
    in_session(db, write_kept)

    assert notes(db) == ["kept"]


def test_message_stays_pending_on_an_autocommitting_engine(
    db: Engine, autocommitting: Engine, valkey_queue: RedisStreamsQueue, consume_one: ConsumeOne
):
    valkey_queue.enqueue({})

    with pytest.raises(DbError, match="AUTOCOMMIT"):
        consume_one(valkey_queue, write_id, autocommitting)

    assert (pending(valkey_queue), notes(db)) == (1, [])


@only_on("sqlite")
def test_sqlite_with_an_explicit_begin_commits(explicit_begin: Engine):
    in_session(explicit_begin, write_kept)

    assert notes(explicit_begin) == ["kept"]


@only_on("sqlite")
def test_sqlite_with_an_explicit_begin_rolls_back(explicit_begin: Engine):
    def work(session: DbSession) -> None:
        with session.connection.begin_nested():
            write(session, "gone")
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_session(explicit_begin, work)

    assert notes(explicit_begin) == []
