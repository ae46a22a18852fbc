"""How far Spark is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WIDTH = 30
_BAR_EVERY_S = 0.2


class Progress:
    """Watches Spark's tasks from a thread of its own, for the length of a block."""

    def __init__(self, spark: SparkSession, title: str, every_s: float, out: TextIO | None = None) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._title = title
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._every_s = _BAR_EVERY_S if self._is_terminal else every_s
        self._is_over = threading.Event()
        self._begun_at = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="conquiet-progress", daemon=True)
        #: Tasks of each stage, done, failed and all, when last active: Spark forgets old stages.
        self._stages: dict[int, tuple[int, int, int]] = {}

    def __enter__(self) -> Self:
        self._print(f"{self._title}: begun")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._is_terminal:
            self._print("\r\x1b[K", end="")
        seconds = time.monotonic() - self._begun_at
        self._print(f"{self._title}: {'done' if error is None else 'failed'} after {seconds:.1f} s")

    def _watch(self) -> None:
        while not self._is_over.wait(self._every_s):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = (info.numCompletedTasks, info.numFailedTasks, info.numTasks)
            # A stage that is not active any more has done all of its tasks.
            active = set(self._tracker.getActiveStageIds())
            done = sum(some if stage in active else tasks for stage, (some, _, tasks) in self._stages.items())
            failed = sum(failed for _, failed, _ in self._stages.values())
            tasks = sum(tasks for _, _, tasks in self._stages.values())
            if not tasks:
                continue
            failures = f", {failed} failed and tried again" if failed else ""
            text = f"{done} of {tasks} tasks{failures}, {time.monotonic() - self._begun_at:.0f} s"
            if self._is_terminal:
                filled = _WIDTH * done // tasks
                bar = "█" * filled + "░" * (_WIDTH - filled)
                self._print(f"\r{self._title} {bar} {text}\x1b[K", end="")
            else:
                self._print(f"{self._title}: {text}")

    def _print(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self._out, flush=True)
