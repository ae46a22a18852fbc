"""Middleware: what happens around every task of an app, one concern each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from conquiet.tasks.context import TaskContext


class Middleware(Protocol):
    """One concern around every task: a subclass has the methods that it needs, the others do nothing.

    `TaskApp(middleware=[first, second])` calls `before` of the first one first, and `after` and `on_error` of
    the second one first, as nested `with` blocks would. One whose `before` has raised, and those behind it,
    are not called any more. All of them run in the task's thread; for a task with a `DbSession` in its
    transaction, before it is committed. What a middleware raises is the task's error: the attempt has failed.

    Examples:
        >>> class Timed(Middleware):
        ...     def after(self, ctx, result):
        ...         print(ctx.name, "has returned", result)
        >>> timed = TaskApp(server.url, namespace="timed", middleware=[Timed()])
    """

    def before(self, ctx: TaskContext) -> None:
        """The function is about to run."""
        return None  # noqa: RET501 -- without a body it would be abstract

    def after(self, ctx: TaskContext, result: Any) -> None:
        """The function has returned."""
        return None  # noqa: RET501 -- without a body it would be abstract

    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        """The function, or a middleware behind this one, has raised; the error is raised on after it."""
        return None  # noqa: RET501 -- without a body it would be abstract


def call_through(middleware: Sequence[Middleware], ctx: TaskContext, call: Callable[[], Any]) -> Any:
    """Call with all of them around it."""
    if not middleware:
        return call()
    first, *others = middleware
    first.before(ctx)
    try:
        result = call_through(others, ctx, call)
    except Exception as error:
        first.on_error(ctx, error)
        raise
    first.after(ctx, result)
    return result
