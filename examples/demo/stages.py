"""Live progress: a line for each stage, and what is in the streams now; plain lines where no terminal is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from examples.demo.watcher import Span, Timeline

State = Literal["running", "done", "failed"]
_PLAIN_EVERY_S = 5.0


class Stage:
    """One line: what is done, how it goes, for how long."""

    def __init__(self, title: str, span: Span) -> None:
        self.title = title
        self.span = span
        self.state: State = "running"
        self.detail = ""
        self.spinner = Spinner("dots", style="cyan")

    def report(self, detail: str) -> None:
        """How it goes, or how it went."""
        self.detail = detail


class Stages:
    """The stages so far, drawn eight times a second; each of them is a span of the timeline."""

    def __init__(self, console: Console, timeline: Timeline) -> None:
        self._console = console
        self._timeline = timeline
        self._stages: list[Stage] = []
        self._plain_at = 0.0
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=8, auto_refresh=console.is_terminal
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """A stage for the length of the block."""
        span = Span(title, self._timeline.now_s(), self._timeline.now_s())
        stage = Stage(title, span)
        self._stages.append(stage)
        self._timeline.spans.append(span)
        self._plain(f"… {title}")
        began = time.monotonic()
        try:
            yield stage
        except BaseException:
            stage.state = "failed"
            raise
        else:
            stage.state = "done"
        finally:
            span.end_s = span.start_s + time.monotonic() - began
            self._plain(f"{_MARKS[stage.state][0]} {title} {_seconds(span)} {stage.detail}".rstrip())

    def _plain(self, line: str) -> None:
        if not self._console.is_terminal and line.strip():
            self._console.print(line, markup=False, soft_wrap=True)

    def _draw(self) -> RenderableType:
        lines = Table.grid(padding=(0, 1))
        for stage in self._stages:
            if stage.state == "running":
                stage.span.end_s = self._timeline.now_s()
            mark: RenderableType = stage.spinner
            if stage.state != "running":
                mark = Text(*_MARKS[stage.state])
            lines.add_row(
                mark, Text(stage.title), Text(_seconds(stage.span), "dim"), Text(stage.detail, "dim")
            )
        return Group(lines, Text(self._now(), style="bold"))

    def _now(self) -> str:
        if not self._timeline.moments:
            return ""
        moment = self._timeline.moments[-1]
        orders = moment.orders
        texts = [
            f"orders: {orders.waiting:,} waiting, {orders.pending:,} pending, {orders.acked:,} acked, "
            f"{moment.rows:,} in the database"
        ]
        texts += [
            f"{reader}: {totals.acked:,} of {totals.enqueued:,}"
            for reader, totals in moment.totals.items()
            if totals.enqueued
        ]
        return " · ".join(texts)


_MARKS: dict[State, tuple[str, str]] = {
    "running": ("…", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
}


def _seconds(span: Span) -> str:
    return f"{span.end_s - span.start_s:5.1f} s"
