"""ResultStoreContract: what the callers of tasks rely on, whichever store keeps the results."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from conquiet.db import DbSession
from conquiet.tasks import (
    RetryPolicy,
    Task,
    TaskApp,
    TaskContext,
    TaskFailedError,
    Worker,
    WorkerConfig,
    scripts,
)
from conquiet.tasks.batch import TaskBatch
from conquiet.tasks.handling import TaskHandling
from conquiet.tasks.worker.execution import ThreadExecution

#: Finds what hangs; no test takes as long.
_PATIENCE_S = 600.0
_QUICK = RetryPolicy(base_delay_ms=1, max_delay_ms=5)
_CONFIG = WorkerConfig(pool="thread", concurrency=2)

#: As JSON has them, and as it has not.
_VALUES: list[Any] = [
    *(None, False, 0, -1.5, 2**53, "", 'ünïcödé \u2028 𝄞 "quoted" \\ \x00', [], {}),
    {"nested": [{"deep": [1, None, "x"]}], "": "empty key"},
    "x" * 500_000,
]


class ResultStoreContract(ABC):
    """Inherit from it in a class that pytest collects, and say how an app with your store is made.

    Examples:
        >>> class TestMyResults(ResultStoreContract):
        ...     takes_session = True
        ...
        ...     def make_app(self):
        ...         app = TaskApp(url, database=engine, namespace=new_name())
        ...         app.result_store = MyResults()
        ...         return app
    """

    #: Whether the store under test is `app.result_store`, that of tasks with a `DbSession`; if not, it is the
    #: one of all tasks, in Redis.
    takes_session = False

    @abstractmethod
    def make_app(self) -> TaskApp:
        """An app whose namespace no other test has used."""

    def test_a_result_comes_back_as_it_was_returned(self) -> None:
        """Of every kind that JSON has, long ones too."""
        with self.make_app() as app:
            task = self._declare(app, lambda _ctx: _VALUES[_ctx.meta["number"]], Any)

            with Worker(app, _CONFIG):
                handles = [task.with_options(meta={"number": n}).enqueue() for n in range(len(_VALUES))]
                assert [handle.result(_PATIENCE_S) for handle in handles] == _VALUES

    def test_a_result_has_the_type_of_the_annotation(self) -> None:
        """Though it travels as JSON."""
        moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
        with self.make_app() as app:
            exact = self._declare(app, lambda _ctx: Decimal("1.10"), Decimal, "exact")
            dated = self._declare(app, lambda _ctx: moment, datetime, "dated")

            with Worker(app, _CONFIG):
                assert repr(exact.enqueue().result(_PATIENCE_S)) == "Decimal('1.10')"
                assert dated.enqueue().result(_PATIENCE_S) == moment

    def test_the_results_of_many_tasks_are_kept_apart(self) -> None:
        """And can be read more than once."""
        with self.make_app() as app:
            task = self._declare(app, lambda ctx: ctx.id, str)

            with Worker(app, _CONFIG):
                handles = task.enqueue_many({} for _ in range(200))
                for _ in range(2):
                    assert [handle.result(_PATIENCE_S) for handle in handles] == [one.id for one in handles]

    def test_a_task_that_failed_has_its_error_and_no_result(self) -> None:
        """Nor has one that was never enqueued."""

        def fail(_ctx: TaskContext) -> Any:
            raise ValueError("no use")

        with self.make_app() as app:
            task = self._declare(app, fail, Any, max_retries=1)

            with Worker(app, _CONFIG):
                handle = task.enqueue()
                assert "ValueError: no use" in _error_of(lambda: handle.result(_PATIENCE_S))
            status = handle.status()
            assert status is not None
            assert (status.state, status.result) == ("dead_lettered", None)
            assert app.results.status("1-1", "default") is None
            if app.engine is not None and self.takes_session:
                assert app.result_store.load(app.engine, handle.id) is None
                assert app.result_store.load(app.engine, "1-1") is None

    def test_the_result_of_a_retried_task_is_that_of_the_attempt_that_succeeded(self) -> None:
        """Nothing is left of those before it."""

        def third(ctx: TaskContext) -> int:
            if ctx.attempt < 2:
                raise ValueError("not yet")
            return ctx.attempt

        with self.make_app() as app:
            task = self._declare(app, third, int, max_retries=2)

            with Worker(app, _CONFIG):
                assert task.enqueue().result(_PATIENCE_S) == 2

    def test_nothing_is_kept_of_a_task_whose_result_is_ignored(self) -> None:
        """Neither state nor result."""
        ran = threading.Semaphore(0)

        def work(ctx: TaskContext) -> str:
            ran.release()
            return ctx.id

        with self.make_app() as app:
            task = self._declare(app, work, str)

            with Worker(app, _CONFIG):
                ignored = task.with_options(ignore_result=True).enqueue()
                assert ran.acquire(timeout=_PATIENCE_S)
                # Tasks end in order: this one after it, in whichever thread.
                for _ in range(_CONFIG.concurrency * 4):
                    task.enqueue().result(_PATIENCE_S)
            assert ignored.status() is None
            if app.engine is not None and self.takes_session:
                assert app.result_store.load(app.engine, ignored.id) is None

    def test_a_worker_that_was_replaced_changes_no_result(self) -> None:
        """Its task was taken over: whichever worker ends it first, there is one result, and it stays.

        With a session the function runs once, since the first worker has committed before it died.
        """
        runs: list[int] = []

        def count(_ctx: TaskContext) -> int:
            runs.append(1)
            return len(runs)

        with self.make_app() as app:
            task = self._declare(app, count, int)
            handle, keys = task.enqueue(), app.keys("default")
            batch = TaskBatch()
            read = scripts.settle_and_read(app.client, keys, "replaced", (), count=1, max_bytes=1 << 20)
            batch.add(app, keys, read.entries)
            [msg] = batch.messages
            handling = TaskHandling(
                app, "replaced", write_record=lambda *_: None, execution=ThreadExecution()
            )
            # It commits, and dies before the ack.
            with handling:
                handling.handle(msg)
            scripts.take_over(app.client, keys, dead=["replaced"])

            with Worker(app, _CONFIG):
                result = handle.result(_PATIENCE_S)
                change = scripts.Change(
                    "ack",
                    msg.place.priority,
                    msg.place.entry_id,
                    msg.delivery_count,
                    task_id=msg.id,
                    record_ttl_ms=60_000,
                    record=("state", "succeeded", "result", "99"),
                )
                late = scripts.settle_and_read(app.client, keys, "replaced", [change], count=0, max_bytes=1)
                assert list(late.refused) == [0]
                assert handle.result(_PATIENCE_S) == result == len(runs)
            assert len(runs) == (1 if self.takes_session else 2)

    def _declare(
        self,
        app: TaskApp,
        function: Callable[[TaskContext], Any],
        returns: Any,
        name: str = "task",
        **options: Any,
    ) -> Task[..., Any]:
        """A task that calls the function; with a session if the store is that of such tasks."""

        def plain(ctx: TaskContext) -> Any:
            return function(ctx)

        def with_session(ctx: TaskContext, session: DbSession) -> Any:
            return function(ctx)

        declared = with_session if self.takes_session else plain
        declared.__annotations__["return"] = returns
        return app.task(name=name, retry=_QUICK, **options)(declared)


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except TaskFailedError as error:
        return error.error
    raise AssertionError("it did not fail")
