"""Declarations: the tasks and hooks of an app, as its code declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from conquiet.tasks.hooks import Hook, Hooks
from conquiet.tasks.names import name_of
from conquiet.tasks.options import TaskOptions
from conquiet.tasks.task import Sender, Task

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Hook)


class Declarations(Sender):
    """What an app declares with decorators, at import."""

    def __init__(self, defaults: TaskOptions) -> None:
        #: Of tasks that declare no others.
        self.defaults = defaults
        self.tasks: dict[str, Task[..., Any]] = {}
        self.hooks = Hooks()

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, function: None = None, /, *, name: str | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Declare a task: `@app.task`, or `@app.task(queue="mail", max_retries=5)`; see `TaskOptions`."""

        def declare(function: Callable[P, R]) -> Task[P, R]:
            task = Task(self, function, name or name_of(function), self.defaults.but(**options))
            if task.name in self.tasks and self.tasks[task.name].function is not function:
                raise ValueError(f"two tasks are named {task.name!r}: give one of them another name")
            self.tasks[task.name] = task
            return task

        return declare if function is None else declare(function)

    def declared_options(self, name: str) -> TaskOptions:
        """Those of a task that is declared, or the defaults."""
        task = self.tasks.get(name)
        return self.defaults if task is None else task.options

    def load_result(self, name: str, value: Any) -> Any:
        """A result as its task returned it; as JSON if the task is not known here."""
        task = self.tasks.get(name)
        return value if task is None else task.signature.load_result(value)

    def on_startup(self, hook: H) -> H:
        """Call this function in each process that runs tasks, before the first one: `@app.on_startup`."""
        self.hooks.startup.append(hook)
        return hook

    def on_shutdown(self, hook: H) -> H:
        """Call this function in each process that ran tasks, after the last one: `@app.on_shutdown`."""
        self.hooks.shutdown.append(hook)
        return hook
