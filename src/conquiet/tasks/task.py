"""Task: a function that can be called here, or enqueued to run in a worker."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from conquiet.tasks import clock
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.handle import TaskHandle
from conquiet.tasks.options import TaskOptions, carried_options, milliseconds
from conquiet.tasks.plain_form import PlainForm
from conquiet.tasks.signature import TaskSignature

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A task with its arguments and options, not enqueued yet.

    Examples:
        >>> call = price.call(2, 50)  # not enqueued yet
        >>> app.send(call).result(timeout_s=60)
        100
    """

    name: str
    #: As JSON values.
    args: Mapping[str, Any]
    options: TaskOptions = field(default_factory=TaskOptions)
    #: The parameter that gets the result of the task before it in a canvas; `None`: it takes none.
    into: str | None = None
    app: Any = field(default=None, repr=False, compare=False)

    def envelope(self, declared: TaskOptions) -> TaskEnvelope:
        """What is written for it, if its task is declared with these options."""
        options, now = self.options, clock.now()
        delay_ms = options.delay_ms(now)
        return TaskEnvelope(
            name=self.name,
            args=dict(self.args),
            queue=options.queue,
            headers=dict(options.headers),
            enqueued_at=now,
            not_before=now + timedelta(milliseconds=delay_ms) if delay_ms else None,
            priority=options.priority,
            max_retries=options.max_retries,
            visibility_timeout_ms=milliseconds(options.visibility_timeout_s) or None,
            meta=carried_options(options, declared, now),
        )


class Sender(Protocol):
    """What a task needs of its app."""

    def send(self, call: TaskCall) -> TaskHandle: ...
    def send_plain(self, form: PlainForm, args: str) -> TaskHandle | None: ...
    def declared_options(self, name: str) -> TaskOptions: ...
    async def send_async(self, call: TaskCall) -> TaskHandle: ...
    def send_many(self, calls: Iterable[TaskCall]) -> list[TaskHandle]: ...
    async def send_many_async(self, calls: Iterable[TaskCall]) -> list[TaskHandle]: ...


class Task(Generic[P, R]):
    """A task of an app; lives as long as its module.

    Calling it runs the function here and now, as if it were not a task.

    Examples:
        >>> price(2, 50)  # a task is still a function
        100
        >>> price.enqueue(quantity=2, cents=50).result(timeout_s=60)
        100
    """

    def __init__(self, app: Sender, function: Callable[P, R], name: str, options: TaskOptions) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.options = options
        #: Made with its first call, for the options of the declaration that it had then.
        self._form: tuple[TaskOptions, PlainForm | None] | None = None
        self.signature = TaskSignature(name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"task {name!r} must return its result, a generator would not run")
        if self.signature.session_parameter is not None:
            self._check_session()
        self._check_rate_key()
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here."""
        return self.function(*args, **kwargs)

    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Enqueue the task with these arguments.

        Raises:
            TaskArgumentsError: they do not fit the function's signature.
            QueueError: Redis failed.
        """
        form = self._plain_form()
        if form is not None and (text := self.signature.dump_json(args, kwargs)) is not None:
            handle = self.app.send_plain(form, text)
            if handle is not None:
                return handle
        return self.app.send(self.call(*args, **kwargs))

    async def enqueue_async(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """As `enqueue`, for an event loop."""
        return await self.app.send_async(self.call(*args, **kwargs))

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[TaskHandle]:
        """Enqueue the task once for each mapping of arguments, in one round trip for up to 1,000."""
        return self.app.send_many(self.call(**one) for one in arguments)

    async def enqueue_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[TaskHandle]:
        """As `enqueue_many`, for an event loop."""
        return await self.app.send_many_async(self.call(**one) for one in arguments)

    def call(self, *args: Any, **kwargs: Any) -> TaskCall:
        """The task with arguments, for `app.send_many` or a canvas."""
        return TaskCall(self.name, self.signature.dump(args, kwargs), self.options, app=self.app)

    def partial(self, *args: Any, **kwargs: Any) -> TaskCall:
        """The task without one argument, which is the result of the task before it in a canvas."""
        arguments, into = self.signature.dump_partial(args, kwargs)
        return TaskCall(self.name, arguments, self.options, into, app=self.app)

    def with_options(self, **options: Any) -> Task[P, R]:
        """The same task with other options, for one call or many; see `TaskOptions`."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.options = self.options.but(**options)
        changed._form = None
        changed._check_rate_key()
        return changed

    def _check_session(self) -> None:
        if self.is_async and not self.signature.takes_async_session:
            raise TypeError(
                f"task {self.name!r} is async and takes a DbSession, which would block the event loop: let "
                "it take an AsyncSession of SQLAlchemy, or make it a plain function"
            )
        if self.signature.takes_async_session and not self.is_async:
            raise TypeError(
                f"task {self.name!r} takes an AsyncSession and cannot await it: make it an `async def`, or "
                "let it take a DbSession"
            )

    def _check_rate_key(self) -> None:
        rate_key = self.options.rate_key
        if isinstance(rate_key, str) and not self.signature.takes(rate_key):
            raise ValueError(f"rate_key of task {self.name!r} must be one of its arguments: {rate_key!r}")

    def _plain_form(self) -> PlainForm | None:
        declared = self.app.declared_options(self.name)
        if self._form is None or self._form[0] is not declared:
            self._form = declared, PlainForm.of(self.name, self.options, declared)
        return self._form[1]

    def __repr__(self) -> str:
        return f"<task {self.name}>"
