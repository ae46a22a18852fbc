"""Gate: whether the loops of one consumer may begin a message now, and how many of them at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

#: How often a loop that waits for its turn looks whether it was stopped: that may come from a signal handler,
#: where no lock may be waited for.
_LOOK_EVERY_S = 0.02


class Gate:
    """Shared by the loops of a consumer; those that wait are let in in the order in which they came."""

    def __init__(self, most_inside: int | None = None) -> None:
        """Let in so many at once, `None` for any number."""
        self.is_paused = False
        self.has_limit = most_inside is not None
        #: Above 0 only while nobody waits.
        self._free = most_inside or 0
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def enter(self, should_end: Callable[[], bool], before_waiting: Callable[[], None]) -> bool:
        """Go in, maybe after a wait, and `leave` must follow; `False` if it should end before."""
        if not self.has_limit or self.enter_at_once():
            return True
        before_waiting()
        turn = threading.Event()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._waiting.append(turn)
        while not turn.wait(_LOOK_EVERY_S):
            if should_end():
                with self._lock:
                    if not turn.is_set():
                        self._waiting.remove(turn)
                        return False
                # Its turn has come in the same moment: it is for the next one.
                self.leave()
                return False
        return True

    def enter_at_once(self) -> bool:
        """Go in if nobody waits and there is room, and `leave` must follow."""
        with self._lock:
            is_free = self._free > 0
            self._free -= is_free
            return is_free

    def leave(self) -> None:
        """Make room, for who has waited longest."""
        if self.has_limit:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._free += 1
