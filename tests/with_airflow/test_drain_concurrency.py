"""Several messages at once, and batches, in tasks of Airflow."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.sensors.drain import DrainSensor
from conquiet import batch_handler
from conquiet.mq import Producer, Topics
from tests.eventually import HANG_S
from tests.with_airflow import handlers
from tests.with_airflow.conftest import states, xcom
from tests.with_airflow.test_drain_operator import drain_dag, enqueue

pytestmark = pytest.mark.usefixtures("airflow_connection")


class Crowd:
    """A handler that ends when so many of it run at once."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self.connections: set[int] = set()

    def __call__(self, msg: Any, session: Any) -> None:
        self.connections.add(id(session.connection.connection.driver_connection))
        self._barrier.wait(HANG_S)


def test_so_many_messages_are_handled_at_once_each_with_a_connection(run_dag, orders, stream):
    enqueue(orders, 12)
    crowd = Crowd(4)

    run = run_dag(drain_dag(stream, handler=crowd, concurrency="4", order_by=False))

    assert xcom(run, "drain")["handled"] == 12
    assert len(crowd.connections) == 4


@pytest.mark.parametrize("order_by", ["customer", lambda msg: msg.payload["customer"]])
def test_messages_of_one_key_are_handled_in_order(run_dag, orders, stream, order_by):
    orders.enqueue_many([{"number": number, "customer": number % 3} for number in range(60)])
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def handler(msg, session):
        seen[msg.payload["customer"]].append(msg.payload["number"])

    run = run_dag(drain_dag(stream, handler=handler, concurrency=4, order_by=order_by))

    assert xcom(run, "drain")["handled"] == 60
    assert seen == {customer: list(range(customer, 60, 3)) for customer in range(3)}


def test_a_stream_without_an_order_fails_at_once_and_reads_nothing(run_dag, orders, valkey, stream):
    enqueue(orders, 2)

    run = run_dag(drain_dag(stream, concurrency=4, retries=3))

    assert states(run) == {"drain": "failed"}
    assert valkey.xinfo_groups(stream)[0]["entries-read"] in (None, 0)


def test_a_topic_keeps_the_order_of_its_keys(run_dag, valkey, stream):
    topic = Topics(valkey).create(stream.replace(":", "-"), 1)
    producer = Producer(valkey)
    for number in range(30):
        producer.send(topic.name, {"number": number}, key=f"k{number % 3}")
    seen: dict[str, list[int]] = {"k0": [], "k1": [], "k2": []}

    def handler(msg, session):
        seen[msg.key].append(msg.payload["number"])

    with DAG("drain_test", schedule=None) as dag:
        DrainOperator(
            task_id="drain", topic=topic.name, group="billing", handler=handler, idle_ms=20, concurrency=3
        )
    run_dag(dag)

    assert seen == {f"k{rest}": list(range(rest, 30, 3)) for rest in range(3)}


@pytest.mark.parametrize(
    "arguments",
    [
        {"handler": "tests.with_airflow.handlers:record_batch"},
        {"handler": "tests.with_airflow.handlers:record_all", "batch": True},
        {"handler": handlers.record_batch, "batch": True},
    ],
)
def test_a_handler_of_batches_gets_up_to_a_batch_size(run_dag, orders, stream, notes, arguments):
    enqueue(orders, 10)

    run = run_dag(drain_dag(stream, batch_size="4", inbox=True, **arguments))

    assert xcom(run, "drain")["handled"] == 10
    assert notes() == [f"{number} of {4 if number < 8 else 2}" for number in range(10)]


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_decorated_function_handles_batches(run_dag, orders, stream, is_marked):
    enqueue(orders, 10)
    seen = []

    def bill(messages, session, rate, run_id=None):
        seen.append(([msg.payload["number"] for msg in messages], rate, run_id))

    with DAG("decorated", schedule=None) as dag:
        decorated = batch_handler(bill) if is_marked else bill
        drain = task.drain(stream=stream, group="billing", idle_ms=20, batch_size=6, batch=not is_marked)(
            decorated
        )
        drain(7)  # type: ignore[call-arg]

    run = run_dag(dag)

    assert seen == [([*range(6)], 7, run.run_id), ([*range(6, 10)], 7, run.run_id)]
    assert xcom(run, "bill")["handled"] == 10


def test_a_sensor_counts_each_message_of_several_at_once(run_dag, orders, stream, notes):
    enqueue(orders, 20)
    with DAG("sensor_test", schedule=None) as dag:
        DrainSensor(
            task_id="drain",
            stream=stream,
            group="billing",
            handler=handlers.record,
            count=20,
            idle_ms=20,
            concurrency=2,
            order_by=False,
        )

    run = run_dag(dag)

    assert xcom(run, "drain")["handled"] == 20
    assert sorted(map(int, notes())) == list(range(20))
