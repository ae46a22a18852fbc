"""Waiting in tests: until something is so, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout_s: float = 20.0, every_s: float = 0.01) -> T:
    """The first true value of `check()`; fails with the last one after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {timeout_s} s"
        time.sleep(every_s)
