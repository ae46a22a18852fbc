"""Tasks: enqueuing, running, how soon one begins, memory, large groups, and other systems."""

from benchmarks.measurement import Measurement
from benchmarks.tasks import consuming, enqueuing, groups, peers, worker

MEASUREMENTS: list[Measurement] = [
    *enqueuing.MEASUREMENTS,
    *consuming.MEASUREMENTS,
    *worker.MEASUREMENTS,
    *groups.MEASUREMENTS,
    *peers.MEASUREMENTS,
]
