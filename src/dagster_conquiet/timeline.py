"""When messages were handled during a drain: a fixed number of bars, however long it takes."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from collections.abc import Callable, Sequence

BARS = 60
_FIRST_WIDTH_S = 0.01
_BAR_PIXELS = 5
_HEIGHT_PIXELS = 48
#: Palette entries of the picture: paper and ink.
_PALETTE = bytes((0xF4, 0xF5, 0xF7, 0x3B, 0x6E, 0xA5))


class Timeline:
    """Counts events in bars of equal width; when they are full, two neighbours become one bar."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.bar_width_s = _FIRST_WIDTH_S
        self._counts = [0] * BARS

    @property
    def counts(self) -> list[int]:
        """The bars up to the last one that is not empty."""
        used = max((place for place, count in enumerate(self._counts) if count), default=-1)
        return self._counts[: used + 1]

    def count(self) -> None:
        """One more event, now."""
        place = int((self._clock() - self._started) / self.bar_width_s)
        while place >= BARS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [first + second for first, second in pairs] + [0] * (BARS // 2)
            self.bar_width_s *= 2
            place //= 2
        self._counts[place] += 1

    def markdown(self) -> str | None:
        """A picture with its caption; no text of any message is in it. `None` if nothing happened."""
        counts = self.counts
        if not counts:
            return None
        picture = base64.b64encode(bar_chart_png(counts)).decode()
        caption = (
            f"{sum(counts)} messages; one bar is {self.bar_width_s * 1000:g} ms, the highest {max(counts)}"
        )
        return f"![{caption}](data:image/png;base64,{picture})\n\n{caption}"


def bar_chart_png(counts: Sequence[int]) -> bytes:
    """A small PNG of two colours, a few hundred bytes."""
    highest = max(counts)
    # Rounded up: a bar that is not empty is seen.
    heights = [-(-count * _HEIGHT_PIXELS // highest) for count in counts] + [0] * (BARS - len(counts))
    rows = []
    for level in range(_HEIGHT_PIXELS, 0, -1):
        row = b"".join(_bar_slice(height >= level) for height in heights)
        # Each row of a PNG begins with its filter; 0 is none.
        rows.append(b"\x00" + row)
    size = struct.pack(">IIBBBBB", BARS * _BAR_PIXELS, _HEIGHT_PIXELS, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", size),
        (b"PLTE", _PALETTE),
        (b"IDAT", zlib.compress(b"".join(rows), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _bar_slice(is_ink: bool) -> bytes:
    return (b"\x01" if is_ink else b"\x00") * (_BAR_PIXELS - 1) + b"\x00"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
