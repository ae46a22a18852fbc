"""Backoff: how long to wait for a server that does not answer."""

from __future__ import annotations

_FIRST_S = 1.0
_LONGEST_S = 30.0


class Backoff:
    """Doubles from one failure to the next, up to half a minute; an answer starts it over."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """The wait after one more failure."""
        current_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        return current_s

    def reset(self) -> None:
        """The server answered."""
        self._next_s = _FIRST_S
