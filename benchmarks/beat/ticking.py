"""Ticks of a beat with 10,000 schedules next to ticks with 100, and the rate at which it enqueues."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from statistics import median

from benchmarks.bench import Bench
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Figure, Measurement
from conquiet.tasks import Beat, BeatConfig, Schedule, TaskApp, TaskTarget, clock
from conquiet.tasks.schedules.store import StoredSchedule

#: In ms since 1970; the clock of the measured ticks stands still.
_BEGIN = 1_767_225_600_000
_HOUR = 3_600_000
_FEW, _MANY = 100, 10_000
_IDLE_TICKS, _TURNS = 100, 31


@contextmanager
def schedules(bench: Bench, count: int, due: int) -> Iterator[tuple[TaskApp, Beat]]:
    """So many schedules, of which some are due."""
    clock.set_clock(_BEGIN)
    with TaskApp(bench.server.url, namespace=f"bench:{secrets.token_hex(4)}") as app:
        for number in range(count):
            schedule = Schedule(name=f"s{number}", target=TaskTarget("book"), every=timedelta(hours=1))
            planned_ms = _BEGIN if number < due else _BEGIN + _HOUR
            new = StoredSchedule(
                name=schedule.name,
                definition=app.schedules.encode(schedule),
                version=0,
                is_enabled=True,
                planned_ms=planned_ms,
            )
            app.schedules.store.put(new, None)
        beat = Beat(app, BeatConfig(name="bench"))
        # The queue is known, the scripts are loaded, and the beat leads.
        app.enqueue("book")
        try:
            yield app, beat
        finally:
            clock.set_clock(None)
            keys = list(bench.client.scan_iter(f"{app.namespace}:*", count=10_000))
            for start in range(0, len(keys), 1_000):
                bench.client.delete(*keys[start : start + 1_000])


def _idle_tick_us(beat: Beat) -> float:
    began = time.perf_counter()
    for _ in range(_IDLE_TICKS):
        beat.tick()
    return (time.perf_counter() - began) / _IDLE_TICKS * 1e6


@lru_cache(maxsize=1)
def idle_ticks_us(bench: Bench) -> tuple[list[float], list[float]]:
    """Microseconds of a tick that finds nothing due: with 10,000 schedules and with 100, in turns."""
    many, few = [], []
    with schedules(bench, _MANY, due=0) as (_, of_many), schedules(bench, _FEW, due=0) as (_, of_few):
        for _ in range(_TURNS):
            many.append(_idle_tick_us(of_many))
            few.append(_idle_tick_us(of_few))
    # The first ones lead, and load the scripts.
    return many[1:], few[1:]


def busy_tick_us(bench: Bench, count: int) -> float:
    """Microseconds of a tick that enqueues 100 occurrences, for each of them."""
    with schedules(bench, count, due=_FEW) as (app, beat):
        began = time.perf_counter()
        report = beat.tick()
        took = time.perf_counter() - began
        if report.claimed != _FEW or app.control.queue("default").queued != _FEW + 1:
            raise BenchmarkError(f"{report.claimed} of {_FEW} occurrences were enqueued")
    return took / _FEW * 1e6


def idle_ratio(bench: Bench) -> float:
    """How many times as long an idle tick takes with 10,000 schedules: each turn next to its neighbour."""
    many, few = idle_ticks_us(bench)
    return median(one / other for one, other in zip(many, few, strict=True))


def busy_ratio(bench: Bench) -> float:
    """How many times as long it takes to enqueue 100 occurrences with 10,000 schedules."""
    return busy_tick_us(bench, _MANY) / busy_tick_us(bench, _FEW)


MEASUREMENTS: list[Measurement] = [
    Figure(
        name="idle tick, 10,000 schedules / 100 schedules",
        unit="ratio",
        take=idle_ratio,
        better="less",
        bar=1.5,
    ),
    Figure(
        name="tick with 100 due, of 10,000 schedules / of 100",
        unit="ratio",
        take=busy_ratio,
        better="less",
        bar=1.5,
        rounds=5,
    ),
    Figure(
        name="idle tick of 10,000 schedules",
        unit="us",
        take=lambda bench: median(idle_ticks_us(bench)[0]),
        better="less",
    ),
    Figure(
        name="one occurrence of 100 that are due, of 10,000 schedules",
        unit="us",
        take=lambda bench: busy_tick_us(bench, _MANY),
        better="less",
        rounds=3,
    ),
]
