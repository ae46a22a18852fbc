"""Calls that run beside the test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import Generic, TypeVar

from tests.eventually import HANG_S

T = TypeVar("T")


class Running(Generic[T]):
    """A call in a daemon thread: one that hangs fails its test and not the whole run."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._future: Future[T] = Future()
        Thread(target=self._run, daemon=True).start()

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        return self._future.result(HANG_S)

    def error(self) -> BaseException | None:
        """What the call raised."""
        return self._future.exception(HANG_S)

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)


def await_event(event: Event) -> None:
    """Wait for what another thread does."""
    assert event.wait(HANG_S), f"still not set after {HANG_S:.0f} s"
