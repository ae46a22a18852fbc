"""A child process of the process pool: one consumer in its main thread, which ends with its parent."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from conquiet.logs import log_to_stderr
from conquiet.tasks.interruption import WAKE_SIGNAL
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.worker.app_reference import load_app
from conquiet.tasks.worker.background import background_threads
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.controlled import ControlledLoops, control_listener
from conquiet.tasks.worker.loop import ConsumerLoop
from conquiet.tasks.worker.slot import RunningSlot, RunningTask
from conquiet.tasks.worker.soft_limits import AlarmLimit, within

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOrder:
    """What a child needs; one line of JSON through its pipe, as a command line would show passwords."""

    app: str
    #: The name of the worker; that of the config is the child's own.
    worker: str
    config: WorkerConfig
    #: The server, if the worker was given one.
    url: str | None
    path: list[str]
    log_level: str | None
    log_format: str

    def to_line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        """As it was sent."""
        values = json.loads(line)
        config = values.pop("config")
        return cls(config=WorkerConfig(**config | {"queues": tuple(config["queues"])}), **values)


class ChildExecution:
    """Runs functions in the main thread, and shows the parent which."""

    def __init__(self, slot: RunningSlot, config: WorkerConfig, recycle: Callable[[], None]) -> None:
        self._slot = slot
        self._config = config
        self._recycle = recycle
        self._limit = AlarmLimit()
        self._count = 0

    def begin(self, msg: TaskMessage, consumer: str, hard_limit_s: float | None) -> None:
        """As `Execution.begin`."""
        place = msg.place
        msg.begins()
        self._slot.begin(
            RunningTask(
                consumer,
                place.keys.queue,
                place.priority,
                place.entry_id,
                msg.delivery_count,
                msg.started_ms,
                hard_limit_s,
            )
        )

    def end(self) -> None:
        """As `Execution.end`; between two tasks the child may be due to be replaced."""
        self._slot.end()
        self._count += 1
        most, most_mb = self._config.max_tasks_per_child, self._config.max_memory_mb
        if most is not None and self._count >= most:
            _log.info("replaced after %s tasks", self._count)
            self._recycle()
        elif most_mb is not None and (used := _resident_mb()) >= most_mb:
            _log.info("replaced with %.0f MB of memory, after %s tasks", used, self._count)
            self._recycle()

    def soft_limit(self, limit_s: float) -> AbstractContextManager[None]:
        """As `Execution.soft_limit`."""
        return self._limit.within(limit_s)

    def limited(self, coroutine: Coroutine[Any, Any, Any], limit_s: float) -> Coroutine[Any, Any, Any]:
        """As `Execution.limited`."""
        return within(coroutine, limit_s)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `Execution.run`."""
        return asyncio.run(coroutine)


def main() -> None:
    """Run tasks until the parent says stop, or has died; the arguments are open files, its pipe and slot."""
    pipe, memory = int(sys.argv[1]), int(sys.argv[2])
    # Not for what tasks start: the parent must see the end of this process alone.
    os.set_inheritable(pipe, False)
    os.set_inheritable(memory, False)
    commands = os.fdopen(pipe, "rb", buffering=0)
    order = ChildOrder.of_line(commands.readline())
    sys.path[:] = order.path
    if order.log_level is not None:
        log_to_stderr(order.log_level, order.log_format)
    try:
        _run(order, RunningSlot(memory), commands.read)
    except Exception:  # noqa: BLE001 -- becomes the exit code, which the parent sees
        _log.exception("process %s of worker %s has ended with an error", os.getpid(), order.config.name)
        _exit(1)
    _exit(0)


def _exit(code: int) -> None:
    """End at once, but for what a program may rely on: threads that are no daemons, and atexit."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # To take the interpreter apart takes far longer than to stop.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(order: ChildOrder, slot: RunningSlot, wait_for_command: Callable[[int], bytes]) -> None:
    app = load_app(order.app)
    if order.url is not None:
        app.use_server(order.url)
    execution = ChildExecution(slot, order.config, lambda: loop.stop())
    loop = ConsumerLoop(app, order.config, 0, execution)

    def stop_on_command() -> None:
        # Any byte, or the end of the pipe: the parent has died. What runs is finished.
        wait_for_command(1)
        loop.stop()

    def stop_on_signal(_number: int, _frame: FrameType | None) -> None:
        # In a thread: the signal may come while this one has the loop's lock.
        threading.Thread(target=loop.stop, daemon=True).start()

    signal.signal(signal.SIGTERM, stop_on_signal)
    # With a handler, it ends a sleep of a task that is interrupted.
    signal.signal(WAKE_SIGNAL, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    threading.Thread(target=stop_on_command, name="conquiet-parent", daemon=True).start()
    with app.hooks.around(execution.run), background_threads(app, order.config, [loop]):
        # The parent reads the same broadcast, and stops its children.
        controlled = ControlledLoops([loop], stop=lambda: None)
        control = control_listener(app, order.config, controlled, parent=order.worker)
        control.start()
        slot.set_ready()
        try:
            loop.run()
        finally:
            control.stop()


def _resident_mb() -> float:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    import resource

    # The most that it ever had, in bytes: macOS has nothing better without a package.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
