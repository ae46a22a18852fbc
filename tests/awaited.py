"""Objects whose methods await, for plain tests: the same tests for both kinds."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class EventLoop:
    """An event loop in a thread of its own, from the start of a `with` block to its end."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for its end; several threads may."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Awaited:
    """Calls the methods of an object in an event loop, each until its end."""

    def __init__(self, awaiting: Any, loop: EventLoop) -> None:
        self._awaiting = awaiting
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._awaiting, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *arguments, **named: self._loop.run(method(*arguments, **named))


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A plain test that runs this one."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run
