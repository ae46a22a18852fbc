"""The core: consuming, enqueuing, and what the library costs by being there."""

from benchmarks.core import concurrency, consuming, enqueuing, footprint, latency, pieces
from benchmarks.measurement import Measurement

MEASUREMENTS: list[Measurement] = [
    *consuming.MEASUREMENTS,
    *concurrency.MEASUREMENTS,
    *enqueuing.MEASUREMENTS,
    *latency.MEASUREMENTS,
    *footprint.MEASUREMENTS,
    *pieces.MEASUREMENTS,
]
