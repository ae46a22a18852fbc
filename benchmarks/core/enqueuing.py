"""`enqueue` and `enqueue_many` next to redis-py's own calls."""

from __future__ import annotations

import json
from typing import Any, Protocol

import redis

from benchmarks.measurement import Comparison, Measurement
from benchmarks.workload import Workload, empty_stream

PIPELINE_SIZE = 1_000


class PipelineWork(Protocol):
    """Payloads, and the stream that they go to."""

    client: redis.Redis

    @property
    def stream(self) -> str: ...

    @property
    def messages(self) -> int: ...

    @property
    def payloads(self) -> list[dict[str, Any]]: ...


def enqueue_each(work: Workload) -> None:
    for payload in work.payloads:
        work.queue.enqueue(payload)


def xadd_each(work: Workload) -> None:
    client, stream = work.client, work.stream
    for payload in work.payloads:
        client.xadd(stream, {"data": json.dumps(payload)})


def enqueue_all(work: Workload) -> None:
    work.queue.enqueue_many(work.payloads, batch_size=PIPELINE_SIZE)


def xadd_in_pipelines(work: PipelineWork) -> None:
    for start in range(0, work.messages, PIPELINE_SIZE):
        pipeline = work.client.pipeline(transaction=False)
        for payload in work.payloads[start : start + PIPELINE_SIZE]:
            pipeline.xadd(work.stream, {"data": json.dumps(payload)})
        pipeline.execute()


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="enqueue / client.xadd",
        prepare=empty_stream,
        raw=xadd_each,
        ours=enqueue_each,
        messages=50,
        bar=0.9,
        rounds=250,
    ),
    Comparison(
        name="enqueue_many / pipelines of 1,000",
        prepare=empty_stream,
        raw=xadd_in_pipelines,
        ours=enqueue_all,
        messages=PIPELINE_SIZE,
        bar=0.8,
        rounds=75,
    ),
]
