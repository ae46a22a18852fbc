"""Traces of steps: what a step enqueues and another run drains is one trace."""

from __future__ import annotations

import uuid

import dagster as dg

from conquiet.mq import Producer, Topics
from dagster_conquiet import (
    TopicDrainConfig,
    TopicDrainSpec,
    build_drain_op,
    build_enqueue_op,
    build_topic_drain_asset,
)
from tests.spans import id_of, parent_of, trace_of, traced


def test_what_one_op_enqueues_and_another_drains_is_told_by_their_spans(spec, resources, instance):
    enqueue, drain = build_enqueue_op(spec), build_drain_op(spec)

    @dg.op
    def payloads() -> list[dict]:
        return [{"n": 1}]

    @dg.job(resource_defs=resources)
    def one_by_one():
        enqueue(payloads())

    @dg.job(resource_defs=resources)
    def later():
        drain()

    with traced(payload_field="_trace") as spans:
        one_by_one.execute_in_process(instance=instance)
        ran = later.execute_in_process(
            instance=instance, run_config={"ops": {drain.name: {"config": {"idle_ms": 50}}}}
        )

    enqueued, drained = spans.all("step")
    create, process = spans.one("create"), spans.one("process")
    assert (enqueued.name, drained.name) == (f"step {enqueue.name}", f"step {drain.name}")
    assert parent_of(create) == id_of(enqueued)
    assert parent_of(process) == id_of(create)
    assert [link.context.span_id for link in process.links] == [id_of(drained)]
    assert drained.attributes is not None
    assert drained.attributes["dagster.run_id"] == ran.run_id


def test_an_asset_that_drains_a_topic_goes_on_with_the_senders_trace(client, resources, instance, spans):
    topic = Topics(client).create(f"orders-{uuid.uuid4().hex[:12]}")
    Producer(client).send(topic.name, {"n": 1})
    asset = build_topic_drain_asset(
        TopicDrainSpec(
            topic=topic.name,
            partitions=1,
            group="billing",
            handler="tests.with_dagster.handlers:note_effect",
            config=TopicDrainConfig(idle_ms=50),
        )
    )

    dg.materialize([asset], partition_key="0", resources=resources, instance=instance)

    send, process, step = spans.one("send"), spans.one("process"), spans.one("step")
    assert (trace_of(process), parent_of(process)) == (trace_of(send), id_of(send))
    assert [link.context.span_id for link in process.links] == [id_of(step)]
