"""`send_many` next to redis-py's own pipeline."""

from __future__ import annotations

import json

from benchmarks.measurement import Comparison, Measurement
from benchmarks.mq.topics import TopicWork, empty_topic
from conquiet.mq import Producer

_PIPELINE_SIZE = 1_000


def send_all(work: TopicWork) -> None:
    Producer(work.client).send_many(work.topic.name, work.payloads, batch_size=_PIPELINE_SIZE)


def xadd_in_pipelines(work: TopicWork) -> None:
    for start in range(0, work.messages, _PIPELINE_SIZE):
        pipeline = work.client.pipeline(transaction=False)
        for payload in work.payloads[start : start + _PIPELINE_SIZE]:
            pipeline.xadd(work.stream, {"data": json.dumps(payload)})
        pipeline.execute()


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="send_many / pipelines of 1,000",
        prepare=empty_topic,
        raw=xadd_in_pipelines,
        ours=send_all,
        messages=_PIPELINE_SIZE,
        bar=0.6,
        rounds=51,
    ),
]
