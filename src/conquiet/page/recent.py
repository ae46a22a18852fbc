"""Recent: one value that is expensive to read, and may be a few seconds old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Keeps the last value for a while; of many callers at once, one reads it."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._kept: tuple[float, T] | None = None
        self._lock = threading.Lock()

    def get(self, read: Callable[[], T]) -> T:
        """The value; read anew if it is too old. What `read` raises is raised, and nothing is kept."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > self._fresh_s:
                self._kept = (time.monotonic(), read())
            return self._kept[1]
