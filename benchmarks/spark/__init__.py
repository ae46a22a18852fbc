"""The Spark data source: writing and reading a million rows next to what one would write by hand."""

from benchmarks.measurement import Measurement
from benchmarks.spark import memory, reading, writing

MEASUREMENTS: list[Measurement] = [
    *writing.MEASUREMENTS,
    *reading.MEASUREMENTS,
    *memory.MEASUREMENTS,
]
