"""Traces across tasks: what one task enqueues and another drains is one trace."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG
from opentelemetry.trace import SpanKind

from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from airflow_provider_conquiet.operators.spark import SparkPublishOperator
from airflow_provider_conquiet.task_try import task_span
from conquiet.mq import Topics
from conquiet.tracing import disable
from tests.spans import id_of, parent_of, trace_of, traceparent_of
from tests.with_airflow.conftest import states

pytestmark = pytest.mark.usefixtures("airflow_connection")


def test_a_message_from_one_task_to_another_is_one_trace(run_dag, valkey, topic_name, spans):
    Topics(valkey).create(topic_name)
    with DAG("traced", schedule=None) as dag:
        enqueue = EnqueueOperator(task_id="enqueue", topic=topic_name, payload={"number": 1})
        handler = "tests.with_airflow.handlers:record"
        place = {"topic": topic_name, "partition": 0, "group": "billing"}
        enqueue >> DrainOperator(task_id="drain", handler=handler, idle_ms=50, **place)

    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    tasks = {span.name: span for span in spans.all("task")}
    create, process = spans.one("create"), spans.one("process")
    assert parent_of(create) == id_of(tasks["task traced.enqueue"])
    assert parent_of(process) == id_of(create)
    assert [link.context.span_id for link in process.links] == [id_of(tasks["task traced.drain"])]
    assert parent_of(spans.one("ack")) == id_of(process)
    assert tasks["task traced.drain"].attributes["airflow.dag_run.run_id"] == run.run_id


def test_airflows_own_span_is_the_parent_and_ours_is_not_made(context, valkey, topic_name, spans):
    Topics(valkey).create(topic_name)
    operator = EnqueueOperator(task_id="enqueue", topic=topic_name, payload={"number": 1})

    with spans.provider.get_tracer("airflow").start_as_current_span("worker.enqueue"):
        operator.execute(context(operator))

    assert parent_of(spans.one("create")) == id_of(spans.one("worker.enqueue"))
    assert spans.all("task") == []


def test_the_schedulers_context_is_the_parent_of_our_span(context, valkey, topic_name, spans):
    Topics(valkey).create(topic_name)
    operator = EnqueueOperator(task_id="enqueue", topic=topic_name, payload={"number": 1})
    with spans.provider.get_tracer("airflow").start_as_current_span("dag_run.traced") as run_span:
        carrier = {"traceparent": traceparent_of(run_span)}

    operator.execute(context(operator, context_carrier=carrier))

    assert parent_of(spans.one("task")) == id_of(spans.one("dag_run.traced"))
    (fields,) = (fields for _, fields in valkey.xrange(f"stream:topic:{topic_name}:p:0"))
    create = spans.one("create")
    assert (create.kind, trace_of(create)) == (SpanKind.PRODUCER, trace_of(run_span))
    assert json.loads(fields["data"])["headers"] == {"traceparent": traceparent_of(create)}


def test_a_submitted_job_is_told_the_context_of_its_task(context, spans):
    operator = SparkPublishOperator(task_id="publish", to_topic="orders", options={"table": "orders"})

    with task_span(context(operator)):
        operator._prepare(context(operator), "report", None)
    told = operator.application_args or []
    disable()
    operator._prepare(context(operator), "report", None)

    assert f"--traceparent={traceparent_of(spans.one('task'))}" in told
    assert not any(argument.startswith("--traceparent") for argument in operator.application_args or [])
