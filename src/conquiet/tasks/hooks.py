"""Hooks: what an app calls in each process that runs its tasks, before the first one and after the last."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger(__name__)

#: A function without arguments, plain or `async def`.
Hook = Callable[[], Any]


class Hooks:
    """The hooks of one app; a process runs them once, around all of its tasks."""

    def __init__(self) -> None:
        self.startup: list[Hook] = []
        self.shutdown: list[Hook] = []

    @contextmanager
    def around(
        self, run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run
    ) -> Iterator[None]:
        """Start-up hooks in their order, then the block, then shut-down hooks in the reverse order.

        A start-up hook that raises keeps the process from running tasks. Every shut-down hook is called, also
        after another one has raised and after a start-up hook has failed; the first error is raised.
        """
        try:
            for hook in self.startup:
                _call(hook, run_coroutine)
            yield
        finally:
            errors = []
            for hook in reversed(self.shutdown):
                try:
                    _call(hook, run_coroutine)
                except Exception as error:  # noqa: BLE001 -- the app's; the first one is raised
                    _log.exception("the shut-down hook %r failed", hook)
                    errors.append(error)
            if errors:
                raise errors[0]


def _call(hook: Hook, run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    result = hook()
    if inspect.iscoroutine(result):
        run_coroutine(result)
