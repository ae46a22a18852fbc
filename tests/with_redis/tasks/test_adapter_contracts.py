"""The suites that users run on their adapters: ours pass them, and wrong ones do not."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from conquiet.tasks import Middleware, SqlResults, TaskApp, TaskContext
from conquiet.testing import MiddlewareContract, ResultStoreContract

Suite = MiddlewareContract | ResultStoreContract


class TestRedisResults(ResultStoreContract):
    """The records of all tasks, in every kind of server."""

    @pytest.fixture(autouse=True)
    def _use(self, server_url: str) -> None:
        self._server_url = server_url

    def make_app(self) -> TaskApp:
        """As it is by default."""
        return TaskApp(self._server_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}")


class Timing(Middleware):
    """As users write one: with a state for each thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.ended = 0

    def before(self, ctx: TaskContext) -> None:
        self._local.task = ctx.id

    def after(self, ctx: TaskContext, result: Any) -> None:
        assert self._local.task == ctx.id

    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        assert self._local.task == ctx.id


class TestMiddleware(MiddlewareContract):
    """One that has all methods."""

    def make_middleware(self) -> Middleware:
        """With a state."""
        return Timing()


class TestEmptyMiddleware(MiddlewareContract):
    """One that has none."""

    def make_middleware(self) -> Middleware:
        """A class alone."""

        class Empty(Middleware):
            pass

        return Empty()


class HidingErrors(Middleware):
    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        raise RuntimeError("something happened") from error


class ChangingTasks(Middleware):
    def before(self, ctx: TaskContext) -> None:
        ctx.meta["seen"] = True  # type: ignore[index]


class FailingAfterAnError(Middleware):
    is_broken = False

    def before(self, ctx: TaskContext) -> None:
        assert not self.is_broken

    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        self.is_broken = True


class LosingResults(SqlResults):
    def load(self, engine: Engine, task_id: str) -> bytes | None:
        return None


def failed_tests(suite: Suite) -> set[str]:
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except Exception:
                failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("middleware", "found_by"),
    [
        (HidingErrors, "test_the_error_of_the_task_stays_its_error"),
        (ChangingTasks, "test_the_task_itself_is_not_changed"),
        (FailingAfterAnError, "test_it_goes_on_after_a_task_that_failed"),
    ],
)
def test_a_wrong_middleware_is_found(middleware: Callable[[], Middleware], found_by: str) -> None:
    class Wrong(MiddlewareContract):
        def make_middleware(self) -> Middleware:
            return middleware()

    assert found_by in failed_tests(Wrong())


def test_a_result_store_that_loses_results_is_found(server_url: str, engine: Engine) -> None:
    class Wrong(ResultStoreContract):
        takes_session = True

        def make_app(self) -> TaskApp:
            app = TaskApp(server_url, database=engine, namespace=f"tasks-{uuid.uuid4().hex[:10]}")
            app.result_store = LosingResults()
            return app

    assert failed_tests(Wrong()) == {"test_a_worker_that_was_replaced_changes_no_result"}
