"""Plain code in an event loop: what it waits for is awaited, and other tasks run meanwhile.

So what builds commands and reads replies is there once, for plain clients and for those of an event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.extras import needs_extra

with needs_extra("asyncio", "greenlet", part="asyncio"):
    from greenlet import getcurrent, greenlet

_T = TypeVar("_T")


class _Plain(greenlet):  # type: ignore[misc]  # it has no types
    """One call of plain code."""

    def __init__(self, function: Callable[..., Any], task: Any) -> None:
        super().__init__(function, task)
        # The context variables of its task: the span of a request is that of what it sends.
        self.gr_context = task.gr_context


async def run_plain(function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Call a function in which `await_here` may be used."""
    plain = _Plain(function, getcurrent())
    result: Any = plain.switch(*arguments, **named)
    while not plain.dead:
        try:
            value = await result
        except BaseException:  # noqa: BLE001 -- the function's to handle, a cancellation too
            result = plain.throw(*sys.exc_info())
        else:
            result = plain.switch(value)
    return result  # type: ignore[no-any-return]  # what the function has returned


def await_here(awaitable: Awaitable[_T]) -> _T:
    """Wait, in plain code that `run_plain` has called."""
    task = getcurrent().parent
    assert task is not None  # noqa: S101 -- for mypy: only the main greenlet has no parent
    result: _T = task.switch(awaitable)
    return result
