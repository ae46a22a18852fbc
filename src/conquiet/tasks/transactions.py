"""Transactions: how tasks that take a session are run, plain ones and those that await."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from conquiet.consume.handling import MessageHandling
from conquiet.consume.outcome import Outcome
from conquiet.db import DbSession
from conquiet.errors import SettingsError
from conquiet.tasks.app import TaskApp
from conquiet.tasks.message import TaskMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from conquiet.tasks.async_transactions import AsyncTransactions

#: Runs a task with its session.
Call = Callable[[TaskMessage, "DbSession | AsyncSession"], Outcome]
#: Keeps its result, in the transaction.
Save = Callable[[TaskMessage, DbSession, Outcome], None]


class Transactions:
    """Those of one loop: effects, inbox row and result of a task are committed at once; one thread.

    Raises:
        SettingsError: a task takes a session for which the app has no database.
    """

    def __init__(self, app: TaskApp, *, call: Call, save: Save) -> None:
        self._app = app
        self._plain: MessageHandling | None = None
        self._awaiting: AsyncTransactions | None = None
        with_session = [task for task in app.tasks.values() if task.signature.session_parameter]
        if any(not task.is_async for task in with_session):
            self._plain = self._new_plain(call, save)
        if any(task.is_async for task in with_session):
            self._awaiting = self._new_awaiting(call, save)
        #: Those that there are tasks for.
        self.kinds = tuple(one for one in (self._plain, self._awaiting) if one is not None)

    def of(self, msg: TaskMessage) -> MessageHandling | AsyncTransactions | None:
        """That of a task; `None` if it takes no session."""
        if msg.task is None or msg.task.signature.session_parameter is None:
            return None
        return self._awaiting if msg.task.is_async else self._plain

    def runner_of(self, msg: TaskMessage) -> Callable[[Coroutine[Any, Any, Any]], Any] | None:
        """What runs the coroutine of a task that takes an `AsyncSession`; `None` for all others."""
        return self._awaiting.run if self._awaiting is not None and self.of(msg) is self._awaiting else None

    def load_result(self, msg: TaskMessage) -> bytes | None:
        """As `ResultStore.load`, of a task that takes a session."""
        if self._awaiting is not None and self.of(msg) is self._awaiting:
            return self._awaiting.load_result(msg.id)
        assert self._app.engine is not None  # noqa: S101 -- for mypy: else it would have failed before
        return self._app.result_store.load(self._app.engine, msg.id)

    def open(self) -> None:
        """Create the tables of inbox and results, unless they exist."""
        if self._plain is not None and self._app.engine is not None:
            self._plain.create_inbox_table()
            self._app.result_store.create_table(self._app.engine)
        if self._awaiting is not None:
            try:
                self._awaiting.create_tables()
            except BaseException:
                self._awaiting.close()
                raise

    def close(self) -> None:
        """Give the connections back."""
        for one in self.kinds:
            one.close()

    def _new_plain(self, call: Call, save: Save) -> MessageHandling:
        app = self._app
        if app.engine is None:
            text = "a task takes a DbSession: give the TaskApp a database, or set CONQUIET_DATABASE_URL"
            if app.async_engine is not None:
                text = "a task takes a DbSession, which the driver of the TaskApp's database cannot give it"
            raise SettingsError(text, key="database_url")

        def run(msg: TaskMessage, session: DbSession) -> Outcome:
            outcome = call(msg, session)
            save(msg, session, outcome)
            return outcome

        return MessageHandling(run, app.engine, app.inbox, purge=app.result_store.purge_step)

    def _new_awaiting(self, call: Call, save: Save) -> AsyncTransactions:
        if self._app.async_engine is None:
            raise SettingsError(
                "a task takes an AsyncSession: give the TaskApp an AsyncEngine, or the URL of a driver that "
                "awaits, as sqlite+aiosqlite, postgresql+asyncpg or postgresql+psycopg",
                key="database_url",
            )
        # Not above: greenlets are an extra.
        from conquiet.tasks.async_transactions import AsyncTransactions

        return AsyncTransactions(self._app, self._app.async_engine, call=call, save=save)
