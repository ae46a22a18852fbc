"""AsyncTransactions: transactions of `async def` tasks that take an `AsyncSession`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from sqlalchemy.util import await_only

from conquiet.consume.async_handling import AsyncHandling
from conquiet.consume.handling import MessageHandling
from conquiet.consume.outcome import Outcome
from conquiet.db import DbSession
from conquiet.tasks.message import TaskMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

    from conquiet.tasks.app import TaskApp


class AsyncTransactions(AsyncHandling):
    """Those of one loop, over the connections of an AsyncEngine; used by the loop's thread.

    What awaits, which is the coroutine of a task and its transaction, runs in the engine's event loop; what
    may block, as middleware and a payload store, in the loop's thread, which does nothing else meanwhile.

    Args:
        call: runs the task with its session, in the thread.
        save: keeps its result, in the transaction.
    """

    def __init__(
        self,
        app: TaskApp,
        engine: AsyncEngine,
        *,
        call: Callable[[TaskMessage, AsyncSession], Outcome],
        save: Callable[[TaskMessage, DbSession, Outcome], None],
    ) -> None:
        self._call, self._save = call, save
        self._async_engine, self._results = engine, app.result_store
        #: What the event loop has for the thread; `None`: the transaction has ended.
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        inside = MessageHandling(
            self._in_transaction, engine.sync_engine, app.inbox, purge=app.result_store.purge_step
        )
        self._handle = inside.handle
        super().__init__(inside, engine)

    def handle(self, msg: Any) -> Outcome:
        """As `MessageHandling.handle`."""
        jobs = self._jobs
        with self.event_loop.calling(self._handle, msg) as ended:
            ended.add_done_callback(lambda _: jobs.put(None))
            while (job := jobs.get()) is not None:
                job()
            return ended.result()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `Execution.run`, where its session can be used."""
        return self.event_loop.call(await_only, coroutine)

    def create_tables(self) -> None:
        """Create those of the inbox and of the results, unless they exist."""
        self.create_inbox_table()
        self.event_loop.call(self._results.create_table, self._async_engine.sync_engine)

    def load_result(self, task_id: str) -> bytes | None:
        """As `ResultStore.load`."""
        return self.event_loop.call(self._results.load, self._async_engine.sync_engine, task_id)

    def _in_transaction(self, msg: TaskMessage, session: DbSession) -> Outcome:
        """In a greenlet of the event loop."""
        loop, orm = asyncio.get_running_loop(), session.async_orm(self._async_engine)
        ended: asyncio.Future[tuple[Outcome | None, BaseException | None]] = loop.create_future()

        def run() -> None:
            outcome, error = None, None
            try:
                outcome = self._call(msg, orm)
            except BaseException as raised:  # noqa: BLE001 -- raised where the transaction is rolled back
                error = raised
            loop.call_soon_threadsafe(ended.set_result, (outcome, error))

        self._jobs.put(run)
        outcome, error = await_only(ended)
        if error is not None:
            raise error
        assert outcome is not None  # noqa: S101 -- for mypy: one of the two is there
        self._save(msg, session, outcome)
        return outcome
