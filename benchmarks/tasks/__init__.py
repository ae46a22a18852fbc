"""Tasks: enqueuing, running, how soon one begins, memory, and the other systems that run tasks."""

from benchmarks.measurement import Measurement
from benchmarks.tasks import consuming, enqueuing, peers, worker

MEASUREMENTS: list[Measurement] = [
    *enqueuing.MEASUREMENTS,
    *consuming.MEASUREMENTS,
    *worker.MEASUREMENTS,
    *peers.MEASUREMENTS,
]
