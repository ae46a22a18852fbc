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
    began = since
    while not (value := check()):
        if (seen := (value, progress())) != last:
            last, since = seen, time.monotonic()
        now = time.monotonic()
        assert now - since < HANG_S, f"still {last!r}, for {HANG_S:.0f} s"
        # A check that takes long must not keep the machine from what it waits for.
        time.sleep(max(every_s, 2 * (now - began)))
        began = time.monotonic()
    return value
