"""A worker next to the raw loop over a stream of the same envelopes; the worker also writes results."""

from __future__ import annotations

import json

from benchmarks.measurement import Comparison, Measurement
from benchmarks.tasks.queue_work import STREAM, QueueWork, filled_queue, work_through
from benchmarks.workload import CONSUMER

_BATCH = 100


def raw_batches(work: QueueWork) -> None:
    """Read 100, decode each, one ack for all of them."""
    for _ in range(0, work.messages, _BATCH):
        [[_, entries]] = work.client.xreadgroup("workers", CONSUMER, {STREAM: ">"}, count=_BATCH)
        for _, fields in entries:
            json.loads(fields[b"data"])
        work.client.xack(STREAM, "workers", *(entry_id for entry_id, _ in entries))


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="worker, one thread, no-op with results / raw batches of 100",
        prepare=filled_queue,
        raw=raw_batches,
        ours=work_through,
        messages=3_000,
        rounds=11,
    ),
]
