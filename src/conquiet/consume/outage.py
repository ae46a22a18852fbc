"""Outages: since when something fails without a success, when to try it again, and when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0


class Outage:
    """Lasts from a first failure to the next success; the waits between tries double up to 5 s."""

    def __init__(
        self, max_s: float, *, min_failures: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        #: How long it is tolerated.
        self.max_s = max_s
        self._min_failures = min_failures
        self._failures = 0
        self._clock = clock
        #: Whether the last try failed; asked with every message, so an attribute.
        self.is_on = False
        self._since = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._next_try = 0.0

    def is_time_to_try(self) -> bool:
        """Whether the wait after the last failure is over."""
        return not self.is_on or self._clock() >= self._next_try

    def failed(self) -> bool:
        """Note a failure, and return whether it has now failed for as long as is tolerated."""
        now = self._clock()
        if not self.is_on:
            self.is_on, self._since, self._wait_s, self._failures = True, now, _FIRST_WAIT_S, 0
        self._failures += 1
        self._next_try = now + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        return self._failures >= self._min_failures and self.has_lasted()

    def has_lasted(self) -> bool:
        """Whether it goes on for as long as is tolerated."""
        return self.is_on and self._clock() - self._since >= self.max_s

    def ended(self) -> None:
        """Note a success."""
        self.is_on = False
