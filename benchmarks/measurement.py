"""What can be measured: ours next to a raw loop, or a figure by itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

from benchmarks.bench import Bench

Better = Literal["more", "less"]

#: Makes what a timed run of so many messages needs, and checks after it that the work was done; both untimed.
Preparation = Callable[[Bench, int], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row of the report: the median of the rounds, and between which values half of them lie."""

    name: str
    value: float
    lower_quartile: float
    upper_quartile: float
    unit: str
    better: Better
    bar: float | None
    rounds: int
    #: Messages per second of both sides of a comparison, medians.
    ours_per_second: float | None = None
    raw_per_second: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is reached; `None` without a bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "more" else self.value <= self.bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ours next to raw on the same preparation, in turns; the value is how many times as fast ours is."""

    name: str
    prepare: Preparation
    raw: Callable[[Any], object]
    ours: Callable[[Any], object]
    messages: int
    bar: float | None = None
    #: Many short rounds, the more the nearer the bar: on a busy machine one is easily off by a factor of two.
    rounds: int = 15

    def measure(self, bench: Bench, on_round: Callable[[], None]) -> Result:
        """Run a round as a warm-up, then those that count."""
        self._round(bench)
        # What is there before the rounds stays out of every collection: otherwise each one takes 60 ms.
        gc.freeze()
        seconds = []
        for _ in range(self.rounds):
            seconds.append(self._round(bench))
            on_round()
        # Each ratio is of two neighbours in time: a slow spell of the machine hits both sides of it.
        ratios = [raw / ours for raw, ours in seconds]
        return Result(
            name=self.name,
            **_spread(ratios),
            unit="ratio",
            better="more",
            bar=self.bar,
            rounds=self.rounds,
            raw_per_second=self.messages / median(raw for raw, _ in seconds),
            ours_per_second=self.messages / median(ours for _, ours in seconds),
        )

    def _round(self, bench: Bench) -> tuple[float, float]:
        return self._seconds(self.raw, bench), self._seconds(self.ours, bench)

    def _seconds(self, work: Callable[[Any], object], bench: Bench) -> float:
        with self.prepare(bench, self.messages) as prepared:
            gc.collect()
            started = time.perf_counter()
            work(prepared)
            return time.perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number by itself, such as a time or a size; less of it is better unless it says otherwise."""

    name: str
    unit: str
    take: Callable[[Bench], float]
    better: Better = "less"
    bar: float | None = None
    rounds: int = 1

    def measure(self, bench: Bench, on_round: Callable[[], None]) -> Result:
        """Take the figure once for each round."""
        values = []
        for _ in range(self.rounds):
            values.append(self.take(bench))
            on_round()
        return Result(
            name=self.name,
            **_spread(values),
            unit=self.unit,
            better=self.better,
            bar=self.bar,
            rounds=self.rounds,
        )


Measurement = Comparison | Figure


def _spread(values: list[float]) -> dict[str, float]:
    lower, _, upper = quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"value": median(values), "lower_quartile": lower, "upper_quartile": upper}
