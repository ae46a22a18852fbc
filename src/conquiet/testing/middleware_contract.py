"""MiddlewareContract: what every `Middleware` must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

from conquiet.tasks.context import TaskContext
from conquiet.tasks.middleware import Middleware, call_through


class MiddlewareContract(ABC):
    """Inherit from it in a class that pytest collects, and say how the middleware is made.

    Examples:
        >>> class TestMyMiddleware(MiddlewareContract):
        ...     def make_middleware(self):
        ...         return MyMiddleware()
    """

    @abstractmethod
    def make_middleware(self) -> Middleware:
        """One that no other test has used."""

    def make_context(self, number: int = 0) -> TaskContext:
        """A task that the middleware lets through; override it for one that needs certain headers."""
        return TaskContext(
            id=f"1700000000000-{number}",
            name="shop.bill",
            queue="default",
            attempt=0,
            max_retries=3,
            headers={"tenant": "a"},
            meta={"batch": 1},
            worker="worker.0.1",
            write=lambda _fields: None,
        )

    def test_the_result_of_the_task_is_not_changed(self) -> None:
        """The caller gets what the function returned."""
        result = object()

        assert call_through([self.make_middleware()], self.make_context(), lambda: result) is result

    def test_the_error_of_the_task_stays_its_error(self) -> None:
        """`retry_on`, `never_on` and the dead letter see what the function raised."""
        error = ValueError("broken")

        assert self._raised(self.make_middleware(), error) is error

    def test_the_task_itself_is_not_changed(self) -> None:
        """Its headers and meta are those of the next attempt too."""
        context = self.make_context()
        before = deepcopy((context.id, context.name, context.queue, context.headers, context.meta))

        call_through([self.make_middleware()], context, lambda: None)

        assert (context.id, context.name, context.queue, context.headers, context.meta) == before

    def test_the_function_runs_once(self) -> None:
        """A middleware is around it, and does not call it."""
        calls: list[int] = []

        call_through([self.make_middleware()], self.make_context(), lambda: calls.append(1))

        assert calls == [1]

    def test_it_goes_on_after_a_task_that_failed(self) -> None:
        """One instance serves all tasks of an app."""
        middleware = self.make_middleware()

        for number in range(3):
            error = ValueError(number)
            assert self._raised(middleware, error, number) is error
            assert call_through([middleware], self.make_context(number), lambda: 7) == 7

    def test_tasks_in_several_threads_do_not_disturb_each_other(self) -> None:
        """A worker calls it from each thread of its pool."""
        middleware = self.make_middleware()

        def run(number: int) -> Any:
            if number % 3 == 0:
                return self._raised(middleware, ValueError(number), number).args[0]
            return call_through([middleware], self.make_context(number), lambda: number)

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(run, range(400))) == list(range(400))

    def test_those_around_it_and_inside_of_it_see_the_task(self) -> None:
        """In its place among others it neither hides a task nor its end."""
        notes: list[str] = []
        stack = [_Noting("outer", notes), self.make_middleware(), _Noting("inner", notes)]

        call_through(stack, self.make_context(), lambda: notes.append("task"))
        _raised_by(lambda: call_through(stack, self.make_context(1), _fail))

        assert notes == [
            *("outer before", "inner before", "task", "inner after", "outer after"),
            *("outer before", "inner before", "inner error", "outer error"),
        ]

    def _raised(self, middleware: Middleware, error: Exception, number: int = 0) -> BaseException:
        def fail() -> None:
            raise error

        return _raised_by(lambda: call_through([middleware], self.make_context(number), fail))


class _Noting(Middleware):
    """Notes what it is called for."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def before(self, ctx: TaskContext) -> None:
        self._notes.append(f"{self._name} before")

    def after(self, ctx: TaskContext, result: Any) -> None:
        self._notes.append(f"{self._name} after")

    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        self._notes.append(f"{self._name} error")


def _fail() -> None:
    raise ValueError("broken")


def _raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001 -- it is what the test is about
        return error
    raise AssertionError("the error of the task was lost")
