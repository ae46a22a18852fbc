"""Redis commands as steps of a generator: written once for a plain and for an asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")

#: The parts of one Redis command, and options for redis-py's parser of the reply.
Command = tuple[tuple[Any, ...], dict[str, Any]]

#: Yields commands, is sent their replies, returns the result.
Steps = Generator[Command, Any, _T]


def command(*parts: Any, **options: Any) -> Command:
    return parts, options


def run_steps(call: Callable[..., Any], steps: Steps[_T]) -> _T:
    """Run the commands one after the other; an error of one is raised where it was yielded."""
    try:
        parts, options = next(steps)
        while True:
            try:
                reply = call(*parts, **options)
            except Exception as error:  # noqa: BLE001 -- it is raised again, in the steps
                parts, options = steps.throw(error)
            else:
                parts, options = steps.send(reply)
    except StopIteration as end:
        result: _T = end.value
        return result


async def run_steps_async(call: Callable[..., Awaitable[Any]], steps: Steps[_T]) -> _T:
    """As `run_steps`, on an event loop."""
    try:
        parts, options = next(steps)
        while True:
            try:
                reply = await call(*parts, **options)
                # On Python 3.11 redis-py's own timeouts swallow a cancellation that comes while a command
                # is sent.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError  # noqa: TRY301 -- as if the call had raised it
            except Exception as error:  # noqa: BLE001 -- it is raised again, in the steps
                parts, options = steps.throw(error)
            else:
                parts, options = steps.send(reply)
    except StopIteration as end:
        result: _T = end.value
        return result
