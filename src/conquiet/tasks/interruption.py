"""Interruption: raises an error inside of a task that runs in another thread."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

#: Nothing but a main thread that has a handler for it notices: then a sleep or a wait for a reply ends.
WAKE_SIGNAL = signal.SIGURG


class Interruption:
    """The task of one thread, for as long as its function runs; other threads may interrupt it, once.

    A plain function sees the error at its next step in Python: a call into C, as a sleep or a wait for a
    reply, ends first, but for a child of the process pool. A coroutine is cancelled at its next `await`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._task_id: str | None = None
        self._thread = 0
        self._is_async = False
        self._cancel: Callable[[], object] | None = None
        self._error: BaseException | None = None

    @contextmanager
    def allowed(self, task_id: str, *, is_async: bool) -> Iterator[None]:
        """In this block the task can be interrupted; whatever it raises then is the interruption."""
        with self._lock:
            self._task_id, self._thread, self._is_async = task_id, threading.get_ident(), is_async
            self._cancel = self._error = None
        try:
            yield
        except BaseException as raised:
            # It may come in the middle of any code, and be another error when that has cleaned up.
            if self._error is None or isinstance(raised, type(self._error)):
                raise
            raise self._error from raised
        finally:
            with self._lock:
                self._task_id = None
                if self._error is not None and not is_async:
                    take_back()

    async def cancellable(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine of the block."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 -- for mypy: a coroutine runs in a task
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            error = self._error
        if error is not None:
            coroutine.close()
            raise error
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._error is None:
                raise
            raise self._error from None

    def interrupt(self, task_id: str, error: BaseException) -> bool:
        """Raise the error inside of the task; not if another one runs here, or it was interrupted before."""
        with self._lock:
            if self._task_id != task_id or self._error is not None:
                return False
            self._error = error
            if not self._is_async:
                raise_in(self._thread, class_of(error))
                if self._thread == threading.main_thread().ident:
                    signal.pthread_kill(self._thread, WAKE_SIGNAL)
            elif self._cancel is not None:
                self._cancel()
            return True


def class_of(error: BaseException) -> type[BaseException]:
    """A class whose exceptions are as this one."""
    # Python makes the exception of a class alone, without arguments.
    kind = type(error)

    def init(self: BaseException) -> None:
        BaseException.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)

    names = {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise in another thread at its next step in Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def take_back() -> None:
    """Drop what was raised in this thread by another one and maybe not delivered yet."""
    # It is replaced by another error, which is received here. Replaced by none, CPython keeps its mark that
    # there is one: up to 3.12 every thread then looks for it at every step, and on 3.11 a tracer, as of a
    # debugger or of coverage, hangs for ever.
    try:
        raise_in(threading.get_ident(), _TakenBackError)
        while True:
            time.sleep(0)
    except _TakenBackError:
        return


class _TakenBackError(BaseException):
    """Takes the place of an error that came too late."""
