"""ProcessWorker: runs tasks in child processes, replaces those that die, and kills those that must."""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import uuid4

from conquiet.consume.outage import Outage
from conquiet.errors import ConquietError
from conquiet.tasks.errors import ProcessDiedError
from conquiet.tasks.metrics import forget_process
from conquiet.tasks.worker.app_reference import load_app
from conquiet.tasks.worker.child import ChildOrder
from conquiet.tasks.worker.child_process import ChildProcess
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.controlled import ControlledProcesses, control_listener
from conquiet.tasks.worker.guard import DeadChild, TaskGuard

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02


class WorkerFailedError(ConquietError):
    """The children of a worker end before they run a task."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"worker {worker} has ended: a process of it {reason}; its log says why")


class ProcessWorker:
    """Runs `concurrency` tasks at once, each in a process; from `start()` to `stop()` and `join()`.

    Each child is a consumer of its own, no task goes through this process. When one dies in the middle of a
    task, this one settles the attempt as failed, frees what the child had reserved, and starts another.

    Args:
        app: where a child finds the app: "shop.tasks:app".
        url: the server, instead of the app's own.
        log_level: of the children, to stderr; `None` leaves their logging to the app.

    Examples:
        >>> from pathlib import Path
        >>> code = f"from conquiet.tasks import TaskApp; app = TaskApp({server.url!r})"
        >>> written = Path("shop_app.py").write_text(code)
        >>> processes = ProcessWorker("shop_app.py:app", WorkerConfig(concurrency=4))
        >>> processes.is_running  # then processes.start(), and processes.join() until it is stopped
        False
    """

    def __init__(
        self,
        app: str,
        config: WorkerConfig | None = None,
        *,
        url: str | None = None,
        log_level: str | None = None,
        log_format: str = "text",
    ) -> None:
        self._config = config or WorkerConfig()
        self._app = load_app(app)
        if url is not None:
            self._app.use_server(url)
        self._order = ChildOrder(
            app=app,
            worker=self._config.name,
            config=self._config,
            url=url,
            path=sys.path,
            log_level=log_level,
            log_format=log_format,
        )
        self._children: list[ChildProcess] = []
        self._started = 0
        self._guard = TaskGuard(
            self._app,
            self._config,
            running=lambda: [task for child in list(self._children) if (task := child.running) is not None],
        )
        #: Children that end before they are ready.
        self._failing = Outage(self._config.max_outage_s)
        self._has_been_ready = False
        self._is_stopping = False
        self._is_killing = False
        self._thread = threading.Thread(target=self._run, name="conquiet-processes")
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether it supervises children."""
        return self._thread.is_alive()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the children, the oldest first."""
        return tuple(child.pid for child in list(self._children))

    def start(self) -> None:
        """Start the children."""
        controlled = ControlledProcesses(self.stop, self.kill)
        self._control = control_listener(self._app, self._config, controlled)
        self._control.start()
        self._thread.start()

    def stop(self) -> None:
        """Have the tasks that run finish, hand back the others, and end; callable from anywhere."""
        self._is_stopping = True

    def kill(self) -> None:
        """End now: the tasks that run are failed attempts; callable from anywhere."""
        self._is_stopping = self._is_killing = True

    def join(self) -> None:
        """Wait for its end, and raise what ended it."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()

    def _run(self) -> None:
        self._guard.start()
        try:
            while not self._is_stopping:
                self._look()
                if len(self._children) < self._config.concurrency and self._failing.is_time_to_try():
                    self._start_child()
                else:
                    time.sleep(_LOOK_EVERY_S)
        except BaseException as error:  # noqa: BLE001 -- raised by `join`
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._is_stopping = True
        for child in self._children:
            child.stop()
        is_killed = False
        while self._children:
            if self._is_killing and not is_killed:
                is_killed = True
                for child in self._children:
                    child.kill(ProcessDiedError("was killed: its worker was stopped at once"))
            self._look()
            time.sleep(_LOOK_EVERY_S)
        self._control.stop()
        self._guard.stop()

    def _start_child(self) -> None:
        self._started += 1
        # The names of its consumers begin with it: no child of another worker may have it.
        name = f"{self._config.name}.{self._started}.{uuid4().hex[:8]}"
        config = replace(self._config, name=name)
        child = ChildProcess(replace(self._order, config=config))
        self._children.append(child)
        _log.debug("process %s of worker %s has started", child.pid, self._config.name)

    def _look(self) -> None:
        for child in list(self._children):
            child.kill_if_overdue()
            if child.has_ended():
                self._children.remove(child)
                forget_process(child.pid)
                self._record_end(child)
                child.close()

    def _record_end(self, child: ChildProcess) -> None:
        self._has_been_ready = self._has_been_ready or child.is_ready
        cause = child.cause_of_death()
        if cause is None:
            self._failing.ended()
            return
        running = child.running
        if self._is_stopping and running is None and not child.is_ready:
            return
        _log.warning("process %s of worker %s: %s", child.pid, self._config.name, cause)
        self._guard.died(DeadChild(child.name, running, cause))
        if running is not None:
            # The task's doing; the next child can work at once.
            self._failing.ended()
            return
        has_failed = self._failing.failed()
        # Without a child that was ready, the app cannot start; one that was killed says nothing of that.
        if (has_failed or not (self._has_been_ready or child.was_killed)) and not self._is_stopping:
            raise WorkerFailedError(self._config.name, str(cause))
