"""Waiting in tests: until something is so, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The one bound of every wait: it finds what hangs, and must never measure how fast the machine is.
HANG_S = 600.0


def eventually(
    check: Callable[[], T], *, every_s: float = 0.01, progress: Callable[[], object] = lambda: None
) -> T:
    """The first true value of `check()`; fails when it and `progress()` have not changed for `HANG_S`."""
    last, since = None, time.monotonic()
    while not (value := check()):
        if (now := (value, progress())) != last:
            last, since = now, time.monotonic()
        assert time.monotonic() - since < HANG_S, f"still {last!r}, for {HANG_S:.0f} s"
        time.sleep(every_s)
    return value
