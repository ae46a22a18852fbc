"""The parts of the benchmark, and the one place where a new one is registered."""

from __future__ import annotations

from importlib import import_module

from benchmarks.measurement import Measurement

#: A part is a module with a list `MEASUREMENTS`; loaded when it runs, since a part may need an extra.
PARTS = {
    "core": "benchmarks.core",
    "memory": "benchmarks.memory",
    "mq": "benchmarks.mq",
    "tasks": "benchmarks.tasks",
    "beat": "benchmarks.beat",
    "airflow": "benchmarks.airflow",
    "spark": "benchmarks.spark",
}


def measurements_of(part: str) -> list[Measurement]:
    """The measurements of a part, in the order in which they run."""
    measurements: list[Measurement] = import_module(PARTS[part]).MEASUREMENTS
    return measurements
