"""DbSession: one database transaction for one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, IntegrityError, ObjectNotExecutableError, SQLAlchemyError

from conquiet.db.guard import TransactionGuard, roll_back
from conquiet.errors import CommitUnknownError, DbError
from conquiet.tracing import active_traces

if TYPE_CHECKING:
    from sqlalchemy import CursorResult, Executable, ScalarResult
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

    from conquiet.db.orm_session import JoinedSession

Row = Mapping[str, Any]

_ENDS = ": the transaction is committed when the handler returns, and rolled back when it raises"
_OF_ORM = ": `session.orm` is an ORM session in the same transaction"
#: What a handler may be used to from another library, and what it does here.
_REMEDIES = {
    **dict.fromkeys(("commit", "rollback", "begin", "close"), _ENDS),
    **dict.fromkeys(
        ("add", "add_all", "delete", "flush", "get", "merge", "query", "refresh", "begin_nested"), _OF_ORM
    ),
}


class DbSession:
    """One transaction, from the start of a `with` block to its end; never used again after it.

    A clean end commits, any exception rolls back. There is no `commit`: the message is acked only after
    the block, so a handler that could commit by itself could lose it. Given an engine it takes a connection
    and releases it; given a connection it leaves it open.

    Examples:
        >>> with DbSession(engine) as session:  # commits at its end, rolls back if the block raises
        ...     rows = session.execute(text("SELECT count(*) FROM bills")).scalar()
    """

    def __init__(self, bind: Engine | Connection) -> None:
        if not isinstance(bind, (Engine, Connection)):
            raise TypeError(f"bind must be a SQLAlchemy Engine or Connection, not {bind!r}")
        self._bind = bind
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._guard: TransactionGuard | None = None
        self._orm: JoinedSession | None = None
        self._is_used = False
        self._is_committed = False
        #: Whether a commit was sent that the database has not refused: it may have been made.
        self.may_be_committed = False

    @property
    def connection(self) -> Connection:
        """The connection of this transaction."""
        if self._connection is None:
            when = "after its `with` block ended" if self._is_used else "before its `with` block began"
            raise DbError(f"this DbSession was used {when}; one DbSession is one transaction")
        return self._connection

    @property
    def orm(self) -> Session:
        """An ORM session in this transaction, made on first use and flushed before the commit."""
        if self._orm is None:
            from conquiet.db.orm_session import JOINED, JoinedSession

            self._orm = JoinedSession(bind=self.connection, **JOINED)
        return self._orm

    def async_orm(self, engine: AsyncEngine) -> AsyncSession:
        """As `orm`, for a handler that awaits; made once, by a DbSession over a connection of this engine."""
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

        from conquiet.db.orm_session import JOINED, JoinedSession

        connection = AsyncConnection(engine, self.connection)
        session = AsyncSession(bind=connection, sync_session_class=JoinedSession, **JOINED)
        self._orm = cast("JoinedSession", session.sync_session)
        return session

    def execute(
        self, statement: Executable, parameters: Row | Sequence[Row] | None = None
    ) -> CursorResult[Any]:
        """Run one statement in this transaction."""
        try:
            return self.connection.execute(statement, parameters)
        except ObjectNotExecutableError as error:
            error.add_note("SQL as a str is written session.execute(text('SELECT …')), with sqlalchemy.text")
            raise

    def scalar(self, statement: Executable, parameters: Row | None = None) -> Any:
        """Run one statement and return the first column of its first row, or `None`."""
        return self.connection.scalar(statement, parameters)

    def scalars(self, statement: Executable, parameters: Row | None = None) -> ScalarResult[Any]:
        """Run one statement and return the first column of each row."""
        return self.connection.scalars(statement, parameters)

    if not TYPE_CHECKING:
        # For a checker every name would be there.
        def __getattr__(self, name: str) -> Any:
            remedy = _REMEDIES.get(name, "")
            raise AttributeError(f"a DbSession has no {name}{remedy}", name=name, obj=self)

    def __enter__(self) -> Self:
        if self._is_used:
            raise DbError("this DbSession was entered before; make a new one for each message")
        self._is_used = True
        if isinstance(self._bind, Connection) and self._bind.in_transaction():
            raise DbError("the connection is in a transaction already; a DbSession begins its own")
        try:
            self._connection = self._bind.connect() if isinstance(self._bind, Engine) else self._bind
            self._transaction = self._connection.begin()
            self._guard = TransactionGuard.begin(self._connection)
        except SQLAlchemyError as error:
            self._release()
            raise DbError(f"the transaction could not be opened: {error}") from error
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
        finally:
            self._release()

    def _commit(self) -> None:
        try:
            if self._orm is not None:
                self._orm.flush()
            has_orm_rolled_back = self._orm is not None and self._orm.has_rolled_back
            if self._transaction is None or not self._transaction.is_active or has_orm_rolled_back:
                raise DbError("the handler ended the transaction itself")
            if self._guard is not None:
                self._guard.check()
                self._guard.end()
            traces = active_traces()
            if traces is None:
                self._send_commit(self._transaction)
            else:
                with traces.committing(self.connection.dialect.name):
                    self._send_commit(self._transaction)
        except SQLAlchemyError as error:
            raise DbError(f"the transaction was not committed: {error}") from error

    def _send_commit(self, transaction: RootTransaction) -> None:
        self.may_be_committed = True
        try:
            transaction.commit()
        except IntegrityError:
            # The database refused it, as by a deferred constraint; after any other error it may be committed.
            self.may_be_committed = False
            raise
        except DBAPIError as error:
            raise CommitUnknownError(
                f"an error in the middle of the commit, which may have been made: {error}"
            ) from error
        self._is_committed = True

    def _release(self) -> None:
        # Rolls back what was not committed, also a transaction that a handler began after ending ours.
        connection, self._connection, self._transaction = self._connection, None, None
        orm, self._orm = self._orm, None
        if orm is not None:
            with suppress(SQLAlchemyError):
                orm.close()
        if connection is None:
            return
        if self._guard is not None:
            self._guard.end()
        if not self._is_committed and not connection.closed:
            roll_back(connection)
            if self._guard is not None and self._guard.has_run_unknown and not connection.invalidated:
                # It may be in autocommit mode now, where the next message could not be rolled back.
                connection.invalidate()
        if connection is not self._bind:
            connection.close()
