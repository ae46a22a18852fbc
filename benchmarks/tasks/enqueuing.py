"""`enqueue` and `enqueue_many` next to redis-py's own calls with the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench import Bench
from benchmarks.measurement import Comparison, Measurement
from benchmarks.tasks.queue_work import STREAM, QueueWork, empty_queue

_PIPELINE_SIZE = 1_000


@contextmanager
def used_queue(bench: Bench, messages: int) -> Iterator[QueueWork]:
    """A queue to which this process has enqueued before: as the raw client, the app is connected."""
    with empty_queue(bench, messages) as work:
        # The second one finds the queue there.
        for _ in range(2):
            work.book.enqueue(order={})
        yield work


def xadd_each(work: QueueWork) -> None:
    for payload in work.payloads:
        work.client.xadd(STREAM, {"data": work.as_envelope(payload)})


def enqueue_each(work: QueueWork) -> None:
    for payload in work.payloads:
        work.book.enqueue(order=payload)


def enqueue_each_without_result(work: QueueWork) -> None:
    book = work.book.with_options(ignore_result=True)
    for payload in work.payloads:
        book.enqueue(order=payload)


def xadd_in_pipelines(work: QueueWork) -> None:
    for start in range(0, work.messages, _PIPELINE_SIZE):
        pipeline = work.client.pipeline(transaction=False)
        for payload in work.payloads[start : start + _PIPELINE_SIZE]:
            pipeline.xadd(STREAM, {"data": work.as_envelope(payload)})
        pipeline.execute()


def enqueue_all(work: QueueWork) -> None:
    work.book.enqueue_many(work.arguments)


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="enqueue / client.xadd",
        prepare=used_queue,
        raw=xadd_each,
        ours=enqueue_each,
        messages=50,
        bar=0.8,
        rounds=150,
    ),
    Comparison(
        name="enqueue, ignore_result / client.xadd",
        prepare=used_queue,
        raw=xadd_each,
        ours=enqueue_each_without_result,
        messages=50,
        rounds=50,
    ),
    Comparison(
        name="enqueue_many / pipelines of 1,000",
        prepare=empty_queue,
        raw=xadd_in_pipelines,
        ours=enqueue_all,
        messages=_PIPELINE_SIZE,
        rounds=15,
    ),
]
