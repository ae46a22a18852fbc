"""The picture of a run in characters: every order over time, the stages, the crash."""

from __future__ import annotations

from bisect import bisect_right

from rich.text import Text

from examples.demo.watcher import Backlog, Moment, Timeline

_HEIGHT = 12
_MARGIN = 8
_ACKED, _PENDING, _WAITING = ("█", "green"), ("▓", "red"), ("░", "yellow")
_CRASH = ("┃", "bold red")
_EMPTY = (" ", "")

Cell = tuple[str, str]


def draw_picture(timeline: Timeline, *, width: int = 100) -> Text:
    """The orders as a stacked area, `width` characters wide; the crash is a vertical line."""
    columns = max(20, width - _MARGIN - 1)
    end_s = max([moment.at_s for moment in timeline.moments] + [span.end_s for span in timeline.spans])
    most = max((moment.orders.enqueued for moment in timeline.moments), default=0) or 1
    grid = [_column(moment, most) for moment in _sampled(timeline.moments, columns, end_s)]
    crash = None if timeline.crash_s is None else _column_at(timeline.crash_s, end_s, columns)
    if crash is not None:
        grid[crash] = [_CRASH] * _HEIGHT

    picture = Text()
    if crash is not None:
        label = "SIGKILL ▼" if crash >= len("SIGKILL") else "▼ SIGKILL"
        start = crash - len(label) + 1 if label.endswith("▼") else crash
        picture.append(" " * (_MARGIN + 1 + start) + label + "\n", style="bold red")
    for row in range(_HEIGHT - 1, -1, -1):
        picture.append(_axis_label(row, most), style="dim")
        for column in grid:
            picture.append(*column[row])
        picture.append("\n")
    picture.append(_stage_line(timeline, end_s, columns) + "\n", style="dim")
    picture.append(_time_line(end_s, columns) + "\n", style="dim")
    _explain(picture, timeline)
    return picture


def _sampled(moments: list[Moment], columns: int, end_s: float) -> list[Moment | None]:
    times = [moment.at_s for moment in moments]
    # A column shows the last reading before its right edge.
    indexes = [bisect_right(times, end_s * (column + 1) / columns) - 1 for column in range(columns)]
    return [moments[index] if index >= 0 else None for index in indexes]


def _column(moment: Moment | None, most: int) -> list[Cell]:
    """From the bottom up."""
    backlog = Backlog() if moment is None else moment.orders
    filled = round(backlog.enqueued / most * _HEIGHT)
    acked = int(backlog.acked / most * _HEIGHT)
    # At least one cell: the few that are pending would vanish between two rows.
    pending = max(1, round(backlog.pending / most * _HEIGHT)) if backlog.pending else 0
    cells = [_ACKED] * acked + [_PENDING] * pending
    cells += [_WAITING] * (filled - len(cells)) if backlog.waiting or backlog.pending else []
    cells += [_ACKED] * (filled - len(cells))
    return (cells + [_EMPTY] * _HEIGHT)[:_HEIGHT]


def _axis_label(row: int, most: int) -> str:
    values = {_HEIGHT - 1: most, _HEIGHT // 2: most // 2, 0: 0}
    return f"{values[row]:>{_MARGIN - 1},} ┤" if row in values else " " * _MARGIN + "│"


def _stage_line(timeline: Timeline, end_s: float, columns: int) -> str:
    line = ["─"] * columns
    for number, span in enumerate(timeline.spans, start=1):
        line[_column_at(span.start_s, end_s, columns)] = str(number)
    return " " * _MARGIN + "└" + "".join(line)


def _time_line(end_s: float, columns: int) -> str:
    step = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 3_600) if end_s / step <= 10)
    line = [" "] * columns
    for second in range(0, int(end_s) + 1, step):
        label = f"{second} s"
        start = _column_at(second, end_s, columns)
        if start + len(label) <= columns:
            line[start : start + len(label)] = label
    return " " * (_MARGIN + 1) + "".join(line).rstrip()


def _explain(picture: Text, timeline: Timeline) -> None:
    margin = " " * (_MARGIN + 1)
    picture.append(margin)
    for (glyph, style), name in (
        (_ACKED, "acked"),
        (_PENDING, "pending"),
        (_WAITING, "waiting"),
        (_CRASH, "crash"),
    ):
        picture.append(glyph, style=style)
        picture.append(f" {name}   ")
    for number, span in enumerate(timeline.spans, start=1):
        picture.append(f"\n{margin}{number} {span.title}", style="dim")


def _column_at(at_s: float, end_s: float, columns: int) -> int:
    return min(columns - 1, int(at_s / end_s * columns)) if end_s else 0
