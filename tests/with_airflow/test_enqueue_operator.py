"""EnqueueOperator: one payload or many, from anywhere, and never twice by a retry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pydantic
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, task

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from conquiet.mq import Topics
from tests.with_airflow.conftest import asset_events, tries, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")


def enqueue_dag(**arguments) -> DAG:
    """A DAG of one enqueue."""
    with DAG("enqueue_test", schedule=None) as dag:
        EnqueueOperator(task_id="enqueue", **arguments)
    return dag


@pytest.fixture
def numbers(valkey, stream):
    """The numbers in the stream, in its order."""

    def read() -> list[Any]:
        return [json.loads(fields["data"])["number"] for _, fields in valkey.xrange(stream)]

    return read


def test_one_payload_is_enqueued_with_its_templates_rendered(run_dag, valkey, stream):
    payload = {"order": "{{ dag_run.conf['order'] }}", "lines": [{"sku": "{{ dag.dag_id }}"}]}

    run = run_dag(enqueue_dag(stream=stream, payload=payload), run_conf={"order": "o-1"})

    [(entry_id, fields)] = valkey.xrange(stream)
    assert json.loads(fields["data"]) == {"order": "o-1", "lines": [{"sku": "enqueue_test"}]}
    assert xcom(run, "enqueue")["ids"] == [entry_id]


def test_many_payloads_keep_their_order(run_dag, stream, numbers):
    payloads = [{"number": number} for number in range(20)]

    report = xcom(run_dag(enqueue_dag(stream=stream, payloads=payloads)), "enqueue")

    assert numbers() == list(range(20))
    assert (report["enqueued"], len(report["ids"])) == (20, 5)


def test_payloads_come_from_an_upstream_task(run_dag, stream, numbers):
    with DAG("enqueue_test", schedule=None) as dag:

        @task
        def find() -> list[dict]:
            return [{"number": 1}, {"number": 2}]

        EnqueueOperator(task_id="enqueue", stream=stream, payloads=find())  # type: ignore[arg-type]

    run_dag(dag)

    assert numbers() == [1, 2]


@dataclass
class Numbered:
    number: Decimal


class NumberedModel(pydantic.BaseModel):
    number: int


VALUES: list[Any] = [
    Numbered(Decimal(1)),
    NumberedModel(number=2),
    MappingProxyType({"number": 3}),
]


def test_dataclasses_models_and_mappings_are_enqueued(stream, context, numbers):
    for name, arguments in {"many": {"payloads": VALUES}, "one": {"payload": VALUES[0]}}.items():
        operator: Any = EnqueueOperator(task_id=name, stream=stream, **arguments)
        operator.execute(context(operator))

    assert numbers() == ["1", 2, 3, "1"]


@pytest.mark.parametrize(("value", "number"), zip(VALUES, ["1", 2, 3], strict=True))
def test_a_function_may_return_one_value_of_a_type(run_dag, stream, numbers, value, number):
    with DAG("enqueue_test", schedule=None) as dag:

        @task.enqueue(stream=stream)
        def find():
            return value

        find()

    run_dag(dag)

    assert numbers() == [number]


def test_payloads_come_from_a_mapped_upstream_task(run_dag, stream, numbers):
    with DAG("enqueue_test", schedule=None) as dag:

        @task
        def find(number: int) -> dict:
            return {"number": number}

        EnqueueOperator(task_id="enqueue", stream=stream, payloads=find.expand(number=[1, 2]))  # type: ignore[arg-type]

    run_dag(dag)

    assert numbers() == [1, 2]


def test_a_retry_does_not_enqueue_twice(run_dag, stream, numbers):
    runs = []

    class DiesAfterwards(EnqueueOperator):
        def execute(self, context):
            report = super().execute(context)
            runs.append(report)
            if len(runs) == 1:
                raise RuntimeError("the worker died before Airflow knew")
            return report

    with DAG("enqueue_test", schedule=None) as dag:
        payloads = [{"number": number} for number in range(3)]
        DiesAfterwards(
            task_id="enqueue",
            stream=stream,
            payloads=payloads,
            retries=1,
            retry_delay=timedelta(0),
        )
    run = run_dag(dag)

    assert (run.state, tries(run, "enqueue")) == ("success", 2)
    assert numbers() == [0, 1, 2]
    assert (runs[0]["added"], runs[0]["already_there"]) == (3, 0)
    assert (runs[1]["added"], runs[1]["already_there"]) == (0, 3)
    assert runs[0]["ids"] == runs[1]["ids"]


@pytest.mark.parametrize("to_topic", [False, True], ids=["stream", "topic"])
def test_a_retry_whose_rows_come_in_another_order_loses_none_and_doubles_none(
    stream, topic_name, context, to_topic
):
    with RedisStreamsHook() as hook:
        topic = Topics(hook.get_conn()).create(topic_name, partitions=3)
        where = {"topic": topic_name} if to_topic else {"stream": stream}

        def run(try_number: int, *numbers: int) -> tuple[int, int]:
            payloads = [{"number": number} for number in numbers]
            task: Any = enqueue_dag(payloads=payloads, **where).get_task("enqueue")
            report = task.execute(context(task, try_number=try_number))
            return report["added"], report["already_there"]

        assert run(1, 1, 2, 2) == (3, 0)
        assert run(2, 3, 2, 1, 2) == (1, 3)

        streams = [topic.keys.stream(partition) for partition in topic.partitions] if to_topic else [stream]
        assert sum(hook.get_conn().xlen(name) for name in streams) == 4


@pytest.mark.parametrize("key", ["order_id", lambda payload: payload["order_id"]], ids=["field", "function"])
def test_a_dedupe_key_says_which_messages_are_the_same(stream, context, numbers, key):
    def run(try_number: int, *payloads: dict) -> tuple[int, int]:
        task: Any = enqueue_dag(stream=stream, payloads=list(payloads), dedupe_key=key).get_task("enqueue")
        report = task.execute(context(task, try_number=try_number))
        return report["added"], report["already_there"]

    first = run(1, {"order_id": "a", "number": 1}, {"order_id": "b", "number": 2})
    second = run(2, {"order_id": "b", "number": 3}, {"order_id": "c", "number": 4})

    assert (first, second) == ((2, 0), (1, 1))
    assert numbers() == [1, 2, 4]


def test_a_payload_without_its_dedupe_key_fails_at_once_and_none_is_added(stream, context, valkey):
    payloads = [{"order_id": "a"}, {"number": 1}]
    task: Any = enqueue_dag(stream=stream, payloads=payloads, dedupe_key="order_id").get_task("enqueue")

    with pytest.raises(AirflowFailException, match="has no 'order_id', which is its dedupe_key"):
        task.execute(context(task))

    assert valkey.xlen(stream) == 0


def test_another_run_enqueues_again(run_dag, stream, numbers):
    dag = enqueue_dag(stream=stream, payload={"number": 1})

    run_dag(dag)
    run_dag(dag)

    assert numbers() == [1, 1]


def test_an_id_of_the_users_own_holds_over_runs(run_dag, stream, numbers):
    dag = enqueue_dag(stream=stream, payload={"number": 1}, dedupe_id="import-2026-01-01")

    run_dag(dag)
    run_dag(dag)

    assert numbers() == [1]


def test_every_mapped_task_enqueues_its_own(run_dag, stream, numbers):
    with DAG("enqueue_test", schedule=None) as dag:
        EnqueueOperator.partial(task_id="enqueue", stream=stream).expand(
            payload=[{"number": 1}, {"number": 2}]
        )

    run_dag(dag)

    assert sorted(numbers()) == [1, 2]


def test_messages_of_a_topic_go_to_the_partitions_of_their_keys_once(topic_name, context):
    with RedisStreamsHook() as hook:
        topic = Topics(hook.get_conn()).create(topic_name, partitions=3)
        payloads = [{"customer": f"c-{number % 5}", "number": number} for number in range(10)]
        enqueue: Any = enqueue_dag(topic=topic_name, payloads=payloads, key_field="customer").get_task(
            "enqueue"
        )

        first = enqueue.execute(context(enqueue))
        second = enqueue.execute(context(enqueue, try_number=2))

        lengths = [topic.call("XLEN", topic.keys.stream(partition)) for partition in topic.partitions]
    assert first["ids"] == second["ids"]
    assert (second["added"], second["already_there"]) == (0, 10)
    assert sum(lengths) == 10


def test_messages_without_a_key_are_spread_and_found_again_by_a_retry(topic_name, context):
    with RedisStreamsHook() as hook:
        topic = Topics(hook.get_conn()).create(topic_name, partitions=3)
        enqueue: Any = enqueue_dag(
            topic=topic_name, payloads=[{"number": number} for number in range(9)]
        ).get_task("enqueue")

        enqueue.execute(context(enqueue))
        enqueue.execute(context(enqueue, try_number=2))

        lengths = [topic.call("XLEN", topic.keys.stream(partition)) for partition in topic.partitions]
    assert sum(lengths) == 9
    assert min(lengths) > 0


def test_a_payload_without_its_key_fails_at_once_and_none_is_sent(topic_name, context):
    with RedisStreamsHook() as hook:
        topic = Topics(hook.get_conn()).create(topic_name)
        payloads = [{"customer": "c"}, {"number": 1}]
        enqueue: Any = enqueue_dag(topic=topic_name, payloads=payloads, key_field="customer").get_task(
            "enqueue"
        )

        with pytest.raises(AirflowFailException, match="has no 'customer'"):
            enqueue.execute(context(enqueue))

        assert topic.call("XLEN", topic.keys.stream(0)) == 0


def test_asset_events_have_count_and_last_id(run_dag, stream):
    asset = Asset(f"redis+stream://localhost/{stream}")

    run = run_dag(enqueue_dag(stream=stream, payload={"number": 1}, outlets=[asset]))

    [told] = asset_events(run).values()
    assert (told["enqueued"], told["last_id"]) == (1, xcom(run, "enqueue")["last_id"])


@pytest.mark.parametrize(
    "mistake", [{"payloads": "[{'number': 1}]"}, {"payloads": [1]}, {"payload": {1: "number"}}, {}]
)
def test_payloads_that_cannot_be_enqueued_fail_at_once(run_dag, stream, valkey, mistake):
    arguments = {"stream": stream, "retries": 2, "retry_delay": timedelta(0)} | mistake

    run = run_dag(enqueue_dag(**arguments))

    assert (run.state, tries(run, "enqueue")) == ("failed", 1)
    assert valkey.xlen(stream) == 0
