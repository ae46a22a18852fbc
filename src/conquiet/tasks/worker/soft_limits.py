"""Soft time limits: `SoftTimeLimitError` is raised inside of the function that runs too long."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from conquiet.errors import ConquietError
from conquiet.tasks.context import TaskContext, current_task
from conquiet.tasks.errors import SoftTimeLimitError
from conquiet.tasks.interruption import class_of, raise_in, take_back
from conquiet.tasks.metrics import METRICS

_log = logging.getLogger(__name__)

#: How late the limit of a thread may be.
_LOOK_EVERY_S = 0.02


class AlarmLimit:
    """By SIGALRM, for the main thread of a process: it interrupts sleeps and waits for a reply, too."""

    def __init__(self) -> None:
        self._limit_s: float | None = None
        self._has_come = False
        signal.signal(signal.SIGALRM, self._on_alarm)

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """The block is interrupted after this time."""
        self._has_come = False
        self._limit_s = limit_s
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:
            # First: an alarm that has come and was not delivered yet does nothing then.
            self._limit_s = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self._has_come:
                _report(current_task(), limit_s)
                _publish(current_task(), limit_s)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        limit_s, self._limit_s = self._limit_s, None
        if limit_s is not None:
            self._has_come = True
            raise SoftTimeLimitError(limit_s)


class ThreadLimit:
    """For threads: seen by the function's next step in Python; a call into C, as a sleep, ends first."""

    def __init__(self) -> None:
        # A lock of C: between its own steps no exception is raised, so that it is always released.
        self._lock = threading.Lock()
        #: By thread: when it is interrupted, its limit and its task.
        self._limits: dict[int, tuple[float, float, TaskContext]] = {}
        self._has_some = threading.Event()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """The block is interrupted after this time."""
        thread, context = threading.get_ident(), current_task()
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="conquiet-limits", daemon=True)
                self._watcher.start()
            # In the lock, which the watcher needs to raise: an exception in this call would break it.
            self._has_some.set()
            self._limits[thread] = (time.monotonic() + limit_s, limit_s, context)
        try:
            yield
        finally:
            with self._lock:
                is_reached = self._limits.pop(thread, None) is None
                if is_reached:
                    take_back()
            if is_reached:
                # Here and not in the watcher, which a slow server would keep from other limits.
                _publish(context, limit_s)

    def _watch(self) -> None:
        while True:
            self._has_some.wait()
            now, reached = time.monotonic(), []
            with self._lock:
                for thread, (due, limit_s, context) in list(self._limits.items()):
                    if due <= now:
                        del self._limits[thread]
                        raise_in(thread, class_of(SoftTimeLimitError(limit_s)))
                        reached.append((context, limit_s))
                if not self._limits:
                    self._has_some.clear()
            for context, limit_s in reached:
                _report(context, limit_s)
            time.sleep(_LOOK_EVERY_S)


async def within(coroutine: Coroutine[Any, Any, Any], limit_s: float) -> Any:
    """Await; after this time the coroutine is cancelled at an `await`, and `SoftTimeLimitError` raised."""
    timer = asyncio.timeout(limit_s)
    try:
        async with timer:
            return await coroutine
    except TimeoutError:
        if not timer.expired():
            raise
        _report(current_task(), limit_s)
        await asyncio.to_thread(_publish, current_task(), limit_s)
        raise SoftTimeLimitError(limit_s) from None


def _report(context: TaskContext, limit_s: float) -> None:
    METRICS.emit("conquiet_tasks_soft_limits_total", 1, context.name, context.queue)
    text = "task %s %s has reached its soft time limit of %g s at attempt %s"
    _log.warning(text, context.name, context.id, limit_s, context.attempt)


def _publish(context: TaskContext, limit_s: float) -> None:
    try:
        context.publish("soft_limit", {"limit_s": limit_s})
    except ConquietError as error:
        # The task has an error of its own to end with.
        _log.warning("no event was published of the soft time limit of task %s: %s", context.id, error)
