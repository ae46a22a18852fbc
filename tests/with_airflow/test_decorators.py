"""`@task.drain` and `@task.enqueue`: functions that are tasks."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG, task

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet.mq import Message, Topics
from tests.with_airflow import handlers
from tests.with_airflow.conftest import xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")


def test_the_decorated_function_is_the_handler(run_dag, orders, stream, notes):
    orders.enqueue_many([{"number": 1}, {"number": 2}])
    with DAG("decorated", schedule=None) as dag:

        @task.drain(stream=stream, group="billing", idle_ms=20)
        def bill(msg, session):
            handlers.record(msg, session)

        bill()  # type: ignore[call-arg]

    run = run_dag(dag)

    assert (xcom(run, "bill")["handled"], notes()) == (2, ["1", "2"])


def test_a_handler_gets_what_its_task_was_called_with_and_the_context_it_names(run_dag, orders, stream):
    orders.enqueue({"number": 1})
    seen = []
    with DAG("decorated", schedule=None) as dag:

        @task
        def find() -> int:
            return 7

        @task.drain(stream=stream, group="billing", idle_ms=20)
        def bill(msg, session, rate, factor=1, run_id=None):
            seen.append((msg.payload["number"], rate, factor, run_id))

        bill(find(), factor=3)  # type: ignore[call-arg]

    run = run_dag(dag)

    assert seen == [(1, 7, 3, run.run_id)]


def test_a_decorated_drain_can_be_used_twice(run_dag, orders, stream, notes):
    orders.enqueue({"number": 1})
    with DAG("decorated", schedule=None) as dag:

        @task.drain(stream=stream, group="billing", idle_ms=20)
        def bill(msg, session):
            handlers.record(msg, session)

        bill() >> bill.override(task_id="once_more")()  # type: ignore[call-arg]

    run = run_dag(dag)

    assert [xcom(run, name)["handled"] for name in ("bill", "once_more")] == [1, 0]


def test_a_handler_without_message_and_session_is_refused_when_the_dag_is_read(stream):
    with DAG("decorated", schedule=None):

        @task.drain(stream=stream, group="billing")
        def bill(msg):
            raise AssertionError

        with pytest.raises(TypeError, match=r"handler\(msg, session\)"):
            bill()  # type: ignore[call-arg]


def read(valkey, stream) -> list[dict]:
    return [json.loads(fields["data"]) for _, fields in valkey.xrange(stream)]


@pytest.mark.parametrize("kind", ["one", "list", "generator", "nothing"])
def test_what_the_function_gives_is_enqueued(run_dag, valkey, stream, kind):
    with DAG("decorated", schedule=None) as dag:

        def one(base):
            return {"number": base}

        def many(base):
            return [{"number": base}, {"number": base + 1}]

        def generator(base):
            yield from many(base)

        def nothing(base):
            return None

        function = {"one": one, "list": many, "generator": generator, "nothing": nothing}[kind]
        task.enqueue(stream=stream, task_id="give")(function)(10)

    run = run_dag(dag)

    expected = {"one": [10], "nothing": []}.get(kind, [10, 11])
    assert [payload["number"] for payload in read(valkey, stream)] == expected
    assert xcom(run, "give")["enqueued"] == len(expected)


def test_a_decorated_drain_is_mapped_over_partitions(run_dag, topic_name, notes):
    with RedisStreamsHook() as hook:
        Topics(hook.get_conn()).create(topic_name, partitions=3)
        hook.send(topic_name, [Message(payload={"number": number}) for number in range(9)])
    with DAG("decorated", schedule=None) as dag:

        @task
        def find_partitions() -> list[int]:
            with RedisStreamsHook() as hook:
                return hook.partitions(topic_name)

        @task.drain(topic=topic_name, group="billing", idle_ms=20)
        def mapped(msg, session, partition):
            handlers.record(msg, session)

        mapped.expand(partition=find_partitions())

    run = run_dag(dag)

    reports = [xcom(run, "mapped", map_index=index) for index in range(3)]
    assert [report["partition"] for report in reports] == [0, 1, 2]
    assert sum(report["handled"] for report in reports) == 9
    assert sorted(map(int, notes())) == list(range(9))
