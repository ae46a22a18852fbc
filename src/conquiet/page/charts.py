"""Charts as SVG: their geometry, in numbers; a template draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

_WIDTH, _HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 24
#: More lines than this cannot be distinguished.
_MOST_LINES = 6
#: Without a sample for so many times the usual distance, a line has a gap.
_GAP = 4


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, and its values by time, ms; `None` is what was not known."""

    name: str
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it is drawn."""

    name: str
    number: int
    path: str
    last: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as it is drawn; coordinates are pixels of its view box."""

    title: str
    #: Read aloud instead of the picture.
    summary: str
    lines: tuple[Line, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    bottom: int = _HEIGHT - _BOTTOM


def chart_of(series: Sequence[Series], *, title: str) -> Chart | None:
    """A chart of the series; `None` if there are not two moments to draw."""
    shown = [one for one in series if any(value is not None for _, value in one.points)][:_MOST_LINES]
    moments = [ms for one in shown for ms, _ in one.points]
    if not moments or min(moments) == max(moments):
        return None
    first, last = min(moments), max(moments)
    highest = max(value for one in shown for _, value in one.points if value is not None)
    # The next number with one digit, or 4 at least, so that four steps are whole numbers.
    size = 10.0 ** math.floor(math.log10(max(4, highest)))
    top = next(step * size for step in (1, 2, 4, 6, 8, 10) if step * size >= max(4, highest))
    unit, sign = (1_000_000, " M") if top >= 1_000_000 else (1_000, " k") if top >= 1_000 else (1, "")

    def x(ms: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (ms - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top, 1)

    lines = []
    for number, one in enumerate(shown, start=1):
        known = [value for _, value in one.points if value is not None]
        path = _path([(x(ms), None if value is None else y(value)) for ms, value in one.points])
        lines.append(Line(one.name, number, path, known[-1]))
    steps = [top * step / 4 for step in range(5)]
    marks = [first + (last - first) * step // 4 for step in range(5)]
    said = "; ".join(f"{line.name} {line.last:,.0f} now" for line in lines if line.last is not None)
    return Chart(
        title=title,
        summary=f"{title}, from {_clock(first)} to {_clock(last)} UTC: {said}; at most {highest:,.0f}",
        lines=tuple(lines),
        y_ticks=tuple((y(value), f"{value / unit:g}{sign if value else ''}") for value in steps),
        x_ticks=tuple((x(ms), _clock(ms)) for ms in marks),
    )


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    steps = sorted(later - earlier for (earlier, _), (later, _) in pairwise(points))
    longest = _GAP * steps[len(steps) // 2] if steps else 0.0
    parts, before = list[str](), None
    for x, y in points:
        if y is not None:
            is_near = before is not None and x - before <= longest
            parts.append(f"{'L' if is_near else 'M'}{x:g} {y:g}")
        before = None if y is None else x
    return " ".join(parts)


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M")
