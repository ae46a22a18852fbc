"""TaskContext: what a running task knows about itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, cast

from conquiet.logs import in_context

#: A task that reports its progress more often is written no more often than this.
_PROGRESS_EVERY_S = 0.2


@dataclass(slots=True, kw_only=True)
class TaskContext:
    """One attempt at one task; lives as long as the task function runs.

    A parameter with this annotation gets it; `current_task()` returns it anywhere in the task's thread.

    Examples:
        >>> @app.task
        ... def report(ctx: TaskContext) -> str:
        ...     ctx.progress(0.5, "half of it")
        ...     return f"attempt {ctx.attempt}"  # counted from 0
    """

    id: str
    name: str
    queue: str
    #: Counted from 0.
    attempt: int
    max_retries: int
    headers: Mapping[str, str]
    meta: Mapping[str, Any]
    worker: str
    write: Callable[[Mapping[str, str]], object] = field(repr=False)
    #: Publishes an event of this kind, with its facts; see `TaskApp.events`.
    publish: Callable[[str, Mapping[str, Any]], object] = field(
        repr=False, default=lambda _kind, _facts: None
    )
    _written_at: float = 0.0

    @property
    def log_fields(self) -> dict[str, Any]:
        """What log lines of it have."""
        facts = {"task": self.name, "queue": self.queue, "attempt": self.attempt}
        return facts | {"message_id": self.id, "consumer": self.worker}

    def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the task is, from 0 to 1; written at most five times a second, and always at 1."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, got {fraction!r}")
        now = time.monotonic()
        if fraction < 1 and now - self._written_at < _PROGRESS_EVERY_S:
            return
        self._written_at = now
        facts = {"fraction": fraction, "text": text, "worker": self.worker, "attempt": self.attempt}
        self.write({"progress": json.dumps(facts)})


#: The same as of the logs, whose lines name the task: also those of a coroutine beside others.
_current = cast("ContextVar[TaskContext]", in_context)


def current_task() -> TaskContext:
    """The task that runs in this thread or coroutine.

    Raises:
        RuntimeError: none does.

    Examples:
        >>> @app.task
        ... def whoami() -> str:
        ...     return current_task().id
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("no task runs here") from None


class running:  # noqa: N801 -- reads as a block; a generator would take twice as long
    """Make it the current task, in a `with` block."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._token: Token[TaskContext]

    def __enter__(self) -> None:
        self._token = _current.set(self._context)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
