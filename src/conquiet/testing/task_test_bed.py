"""TaskTestBed: the tasks of an app in the process of a test, with a clock that the test moves."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from conquiet.embedded import EmbeddedServer
from conquiet.tasks import Beat, TaskApp, Worker, WorkerConfig, clock
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.worker.execution import ThreadExecution

_LOOK_EVERY_S = 0.002
#: A task that was interrupted and has not ended after this time is in a call that nothing can interrupt.
_HARD_STOP_S = 5.0


class TaskTestBed:
    """Runs the tasks of an app as a worker does, on a private server, when the test says so.

    For as long as its block lasts, the app uses that server, and the clock of tasks stands still but for
    `move_clock`. What is queued, run, retried and written is as anywhere, by the same worker, in threads of
    this process. One at a time in a process: it has one clock.

    Not moved are the soft time limit, which is of the machine, and what the database keeps, such as
    `Inbox(keep_for=…)`. Hard time limits are not kept: nothing can end a thread.

    Args:
        concurrency: how many tasks run at once; with one, in the order in which they were enqueued.

    Examples:
        >>> from conquiet.tasks import TaskApp
        >>> shop = TaskApp()
        >>> @shop.task
        ... def greet(name: str) -> str:
        ...     return f"Hello {name}"
        >>> with TaskTestBed(shop) as bed:
        ...     handle = greet.with_options(delay_s=3_600).enqueue("Ann")
        ...     bed.move_clock(hours=1)
        ...     bed.run_until_idle()
        ...     handle.result(timeout_s=1)
        'Hello Ann'
    """

    def __init__(self, app: TaskApp, *, concurrency: int = 1) -> None:
        self._app = app
        self._concurrency = concurrency
        self._resources = ExitStack()
        self._beat: Beat | None = None

    def __enter__(self) -> Self:
        if clock.for_scripts():
            raise RuntimeError("another TaskTestBed is open: one process has one clock")
        with ExitStack() as resources:
            server = resources.enter_context(EmbeddedServer())
            resources.enter_context(self._app.on_server(server.url))
            resources.callback(clock.set_clock, None)
            clock.set_clock(clock.now_ms())
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()
        self._beat = None

    @property
    def now(self) -> datetime:
        """The time of tasks; give an `eta` in relation to it."""
        return clock.now()

    def move_clock(self, **duration: float) -> None:
        """Let time pass: `move_clock(hours=1, seconds=5)`, as `timedelta` takes it.

        Nothing runs before `run_until_idle`. Results and unique keys that expire in this time are gone.
        """
        passed = timedelta(**duration)
        if passed <= timedelta(0):
            raise ValueError(f"the clock of tasks is moved forward only, got {duration!r}")
        passed_ms = round(passed.total_seconds() * 1000)
        clock.set_clock(clock.now_ms() + passed_ms)
        client = self._app.client
        # SCAN may return a key twice, while the server resizes its table: it would expire too early.
        for key in set(client.scan_iter(count=1_000)):
            left_ms = client.pttl(key)
            if 0 <= left_ms <= passed_ms:
                client.delete(key)
            elif left_ms > passed_ms:
                client.pexpire(key, left_ms - passed_ms)

    def run_until_idle(self, timeout_s: float = 60.0) -> None:
        """Run what can run now, what it enqueues included; what waits for its time stays.

        Each call is the life of one worker: its start-up hooks run before and its shut-down hooks after.

        Raises:
            TimeoutError: tasks still run after `timeout_s` of the machine's time.
        """
        ends_at = time.monotonic() + timeout_s
        queues: list[str] = []
        while (known := self._app.known_queues()) != queues:
            queues = known
            config = WorkerConfig(pool="thread", concurrency=self._concurrency, queues=tuple(queues))
            worker = Worker(self._app, config, execution=_BedExecution())
            worker.start()
            while worker.is_running and not self._is_idle(queues):
                if time.monotonic() >= ends_at:
                    raise self._still_running(worker, queues, timeout_s)
                time.sleep(_LOOK_EVERY_S)
            worker.stop()
            worker.join()

    def run_beat(self) -> None:
        """Enqueue what the schedules of the app have due now, as a beat does; `run_until_idle` runs it.

        The first call writes the schedules that the code declares: what they have due counts from then on.
        """
        if self._beat is None:
            self._beat = Beat(self._app)
            self._beat.apply_declared()
        while self._beat.tick().wait_ms == 0:
            pass

    def _is_idle(self, queues: list[str]) -> bool:
        """Looked at twice: a task may have enqueued another into a queue that was looked at before."""
        positions, client = self._positions(queues), self._app.client
        for queue in (*queues, *queues):
            keys, stats = self._app.keys(queue), self._app.control.queue(queue)
            due = sum(client.zcount(name, "-inf", clock.now_ms()) for name in (keys.delayed, *keys.waiting))
            if stats.in_flight or client.hlen(keys.follow_ups):
                return False
            if not stats.is_paused and (stats.queued or due):
                return False
        return self._positions(queues) == positions

    def _positions(self, queues: list[str]) -> list[str]:
        return [self._app.results.events_position(queue) for queue in queues]

    def _still_running(self, worker: Worker, queues: list[str], timeout_s: float) -> TimeoutError:
        pages = [self._app.control.tasks(queue, "in_flight") for queue in queues]
        names = ", ".join(f"{task.name} {task.id}" for page in pages for task in page.tasks)
        # Raises an error inside of each; one that does not see it keeps its thread, and the process, alive.
        self._app.control.shutdown(hard=True)
        ends_at = time.monotonic() + _HARD_STOP_S
        while worker.is_running and time.monotonic() < ends_at:
            time.sleep(_LOOK_EVERY_S)
        if not worker.is_running:
            worker.join()
        return TimeoutError(f"tasks still run after {timeout_s:g} s: {names}")


class _BedExecution(ThreadExecution):
    """Runs tasks with a hard time limit, too, without it."""

    def begin(self, msg: TaskMessage, consumer: str, hard_limit_s: float | None) -> None:
        """As `Execution.begin`."""
