"""Background: a consumer in a thread of its own."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

#: How often `wait_until_owned` looks.
_LOOK_EVERY_S = 0.02


class Background(ABC):
    """Runs in a thread from `start()`, or the start of a `with` block, until `stop()`, or the block's end."""

    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    @property
    @abstractmethod
    def owned(self) -> list[int]:
        """The partitions that it owns now."""

    @abstractmethod
    def run(self) -> None:
        """Work until stopped."""

    @abstractmethod
    def stop(self) -> None:
        """Let `run` end."""

    def start(self) -> None:
        """Run in a thread of its own, until `stop()`; `join()` raises what ended it."""
        if self._thread is not None:
            raise RuntimeError("it was started before: make a new consumer for each run")
        self._thread = threading.Thread(target=self._run, name="conquiet-consumer", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, and raise what ended it; `False` if it still runs after that time."""
        if self._thread is None:
            raise RuntimeError("it was not started")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait_until_owned(self, timeout_s: float | None = None) -> bool:
        """Wait until it owns a partition; `False` if it does not after that time, or has ended."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.owned:
            if self._thread is None or not self._thread.is_alive():
                return False
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            self.join()
        except BaseException as also:
            if error is None:
                raise
            error.add_note(f"and the consumer had ended: {also!r}")

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 -- for `join`
            self._error = error
