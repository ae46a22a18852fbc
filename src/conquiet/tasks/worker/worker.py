"""Worker: runs tasks in threads of this process."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from conquiet.tasks.app import TaskApp
from conquiet.tasks.worker.background import background_threads
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.controlled import ControlledLoops, control_listener
from conquiet.tasks.worker.execution import AsyncExecution, ThreadExecution, check_hard_limits
from conquiet.tasks.worker.loop import ConsumerLoop

_log = logging.getLogger(__name__)


class Worker:
    """Runs `concurrency` tasks at once; from `start()` to `stop()` and `join()`, or as a `with` block.

    With the pool "thread" each task has a thread; with "async", coroutines share one event loop as well. The
    pool "process" is a `ProcessWorker`.

    Args:
        execution: how functions are called; without, as the pool says, which refuses hard time limits.

    Examples:
        >>> second = Worker(app, WorkerConfig(pool="thread", concurrency=1))
        >>> second.start()  # in production: conquiet worker shop:app
        >>> second.stop()
        >>> second.join()
    """

    def __init__(
        self, app: TaskApp, config: WorkerConfig | None = None, *, execution: ThreadExecution | None = None
    ) -> None:
        self._app = app
        self._config = config or WorkerConfig(pool="thread")
        if self._config.pool == "process":
            raise ValueError(
                "a Worker runs tasks in this process, in the pool 'thread' or 'async'; for 'process' "
                "use ProcessWorker('package.module:app', config), or the command `conquiet worker`"
            )
        self._execution = execution
        if execution is None:
            check_hard_limits(app, self._config)
        self._resources = ExitStack()
        self._loops: list[ConsumerLoop] = []
        self._threads: list[threading.Thread] = []

    @property
    def is_running(self) -> bool:
        """Whether one of its threads works."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Call the start-up hooks, and begin, in threads."""
        with ExitStack() as resources:
            execution = self._execution or ThreadExecution()
            if self._execution is None and self._config.pool == "async":
                execution = shared = AsyncExecution()
                resources.callback(shared.close)
            resources.enter_context(self._app.hooks.around(execution.run))
            self._loops = [
                ConsumerLoop(self._app, self._config, number, execution)
                for number in range(self._config.concurrency)
            ]
            resources.enter_context(background_threads(self._app, self._config, self._loops))
            control = control_listener(self._app, self._config, ControlledLoops(self._loops, self.stop))
            control.start()
            resources.callback(control.stop)
            self._resources = resources.pop_all()
        for number, loop in enumerate(self._loops):
            thread = threading.Thread(target=self._work, args=(loop,), name=f"conquiet-task-{number}")
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Have the tasks that run finish, hand back the others, and end; callable from any thread."""
        for loop in self._loops:
            loop.stop()

    def kill(self) -> None:
        """End this process at once, as nothing ends a thread: its tasks are taken over as a dead worker's."""
        os._exit(1)

    def join(self) -> None:
        """Wait for its end, call the shut-down hooks, and raise what ended it."""
        for thread in self._threads:
            thread.join()
        self._resources.close()
        for loop in self._loops:
            if loop.error is not None:
                raise loop.error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()

    def _work(self, loop: ConsumerLoop) -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 -- raised by `join`
            loop.error = error
            _log.exception("a consumer of worker %s has ended", self._config.name)
            self.stop()
