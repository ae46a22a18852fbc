"""The MQ: one partition next to raw loops, sending, and what more partitions and longer streams cost."""

from benchmarks.measurement import Measurement
from benchmarks.mq import consuming, scaling, sending

MEASUREMENTS: list[Measurement] = [
    *consuming.MEASUREMENTS,
    *sending.MEASUREMENTS,
    *scaling.MEASUREMENTS,
]
