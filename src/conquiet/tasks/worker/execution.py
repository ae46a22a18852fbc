"""How the pools run a function: its coroutine, and its soft time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any

from conquiet.logs import naming_messages_of_tasks
from conquiet.tasks.app import TaskApp
from conquiet.tasks.errors import HardLimitPoolError
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.soft_limits import ThreadLimit, within


def check_hard_limits(app: TaskApp, config: WorkerConfig) -> None:
    """Refuse tasks of the worker's queues whose hard time limit the pool cannot keep.

    Raises:
        HardLimitPoolError: for the first one of them.
    """
    if config.pool != "process":
        for task in app.tasks.values():
            limit_s = task.options.hard_time_limit_s
            if limit_s is not None and task.options.queue in config.queues:
                raise HardLimitPoolError(task.name, limit_s=limit_s, pool=config.pool)


class ThreadExecution:
    """In the loop's own thread; a coroutine has an event loop of its own there."""

    pool = "thread"

    def __init__(self) -> None:
        self._limits = ThreadLimit()

    def begin(self, msg: TaskMessage, consumer: str, hard_limit_s: float | None) -> None:
        """As `Execution.begin`."""
        if hard_limit_s is not None:
            raise HardLimitPoolError(msg.envelope.name, limit_s=hard_limit_s, pool=self.pool)

    def end(self) -> None:
        """As `Execution.end`."""

    def soft_limit(self, limit_s: float) -> AbstractContextManager[None]:
        """As `Execution.soft_limit`."""
        return self._limits.within(limit_s)

    def limited(self, coroutine: Coroutine[Any, Any, Any], limit_s: float) -> Coroutine[Any, Any, Any]:
        """As `Execution.limited`."""
        return within(coroutine, limit_s)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `Execution.run`."""
        return asyncio.run(coroutine)


class AsyncExecution(ThreadExecution):
    """Coroutines of all loops share one event loop, in a thread that lives as long as the worker."""

    pool = "async"

    def __init__(self) -> None:
        super().__init__()
        self._event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="conquiet-event-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `Execution.run`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._event_loop).result()

    def _serve(self) -> None:
        with naming_messages_of_tasks():
            self._event_loop.run_forever()

    def close(self) -> None:
        """End the event loop."""
        self._event_loop.call_soon_threadsafe(self._event_loop.stop)
        self._thread.join()
        self._event_loop.close()
