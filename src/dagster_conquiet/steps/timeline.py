"""When messages were handled during a drain: a fixed number of bars, however long it takes."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.outcome import DeadLetter, Retry

BARS = 60
_FIRST_WIDTH_S = 0.01
_HEIGHT = 48


class Timeline:
    """Counts events in bars of equal width; when they are full, each two adjacent ones become one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.bar_width_s = _FIRST_WIDTH_S
        self._counts = [0] * BARS
        self._lock = threading.Lock()

    @property
    def counts(self) -> list[int]:
        """The bars up to the last one that is not empty."""
        used = max((index for index, count in enumerate(self._counts) if count), default=-1)
        return self._counts[: used + 1]

    def count(self, number: int = 1) -> None:
        """So many more events, now; by any thread."""
        with self._lock:
            self._count(number)

    def _count(self, number: int) -> None:
        index = int((self._clock() - self._started) / self.bar_width_s)
        while index >= BARS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [first + second for first, second in pairs] + [0] * (BARS // 2)
            self.bar_width_s *= 2
            index //= 2
        self._counts[index] += number

    def counting(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, with each message that it finished counted."""

        @wraps(handler)
        def handle(given: Any, *arguments: Any) -> Any:
            result = handler(given, *arguments)
            number = len(given) if isinstance(handler, BatchHandler) else 1
            # Of a batch that was rolled back each message is handled again by itself.
            if number == 1 or not isinstance(result, Retry | DeadLetter):
                self.count(number)
            return result

        return BatchHandler(handle) if isinstance(handler, BatchHandler) else handle

    def markdown(self) -> str | None:
        """A picture with its caption; no text of any message is in it. `None` if nothing happened."""
        counts = self.counts
        if not counts:
            return None
        picture = base64.b64encode(bar_chart_svg(counts).encode()).decode()
        caption = (
            f"{sum(counts)} messages; one bar is {self.bar_width_s * 1000:g} ms, the highest {max(counts)}"
        )
        return f"![{caption}](data:image/svg+xml;base64,{picture})\n\n{caption}"


def bar_chart_svg(counts: Sequence[int]) -> str:
    """A small SVG, one path with a rectangle for each bar that is not empty."""
    # Rounded up: a bar that is not empty is seen.
    heights = [-(-count * _HEIGHT // max(counts)) for count in counts]
    bars = "".join(
        f"M{5 * index},{_HEIGHT}v-{height}h4v{height}z" for index, height in enumerate(heights) if height
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{5 * BARS}" height="{_HEIGHT}">'
        f'<rect width="100%" height="100%" fill="#f4f5f7"/><path fill="#3b6ea5" d="{bars}"/></svg>'
    )
