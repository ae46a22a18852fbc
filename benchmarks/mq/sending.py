"""`send_many` next to redis-py's own pipeline."""

from __future__ import annotations

from benchmarks.core.enqueuing import PIPELINE_SIZE, xadd_in_pipelines
from benchmarks.measurement import Comparison, Measurement
from benchmarks.mq.topics import TopicWork, empty_topic
from conquiet.mq import Producer


def send_all(work: TopicWork) -> None:
    Producer(work.client).send_many(work.topic.name, work.payloads, batch_size=PIPELINE_SIZE)


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="send_many / pipelines of 1,000",
        prepare=empty_topic,
        raw=xadd_in_pipelines,
        ours=send_all,
        messages=PIPELINE_SIZE,
        bar=0.85,
        rounds=51,
    ),
]
