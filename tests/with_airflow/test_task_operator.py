"""TaskOperator: a conquiet task by its name, once per task instance, without a slot."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk import DAG, task

from airflow_provider_conquiet.operators.task import TaskOperator
from conquiet.tasks import RetryPolicy, TaskApp, Worker, WorkerConfig, current_task
from tests.with_airflow.conftest import tries, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0)}


class Shop:
    """An app with a namespace of its own, and what its tasks did."""

    def __init__(self, app: TaskApp) -> None:
        self.app = app
        self.billed: list[str] = []
        #: How many of the first calls fail.
        self.failures = 0
        app.task(name="shop.bill")(self.bill)
        app.task(name="shop.fill")(lambda size: "x" * size)
        app.task(name="shop.retried", retry=RetryPolicy(base_delay_ms=1))(self.retried)

    def bill(self, order_id: int) -> dict[str, int]:
        self.billed.append(current_task().id)
        if len(self.billed) <= self.failures:
            raise ValueError(f"order {order_id} has no price")
        return {"order_id": order_id}

    def retried(self) -> int:
        if (attempt := current_task().attempt) < 2:
            raise ValueError("not yet")
        return attempt

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker, for the length of the block."""
        config = WorkerConfig(queues=("bills",), pool="thread", concurrency=1, heartbeat_ttl_s=60.0)
        with Worker(self.app, config):
            yield

    def operator(self, **arguments: Any) -> TaskOperator:
        given = {"task_id": "bill", "task": "shop.bill", "args": {"order_id": 7}, "task_queue": "bills"}
        once = {"namespace": self.app.namespace, "options": {"max_retries": 0}}
        return TaskOperator(**{**given, **once, **arguments})

    def dag(self, **arguments: Any) -> DAG:
        with DAG(f"billing_{uuid.uuid4().hex[:8]}", schedule=None) as dag:
            self.operator(**arguments)
        return dag

    def work_off(self) -> None:
        """Have everything done that is enqueued."""
        with self.working():
            self.app.enqueue("shop.fill", {"size": 0}, queue="bills", priority=0).result(600)


@pytest.fixture
def shop(valkey_url: str) -> Iterator[Shop]:
    with TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as app:
        yield Shop(app)


@pytest.fixture
def deferred(context: Callable[..., Any]) -> Callable[..., str]:
    """Executes the operator as Airflow does; returns the id of the task for which it waits."""

    def execute(operator: TaskOperator, try_number: int = 1) -> str:
        with pytest.raises(TaskDeferred) as caught:
            operator.execute(context(operator, try_number=try_number))
        return str(caught.value.trigger.conquiet_task_id)

    return execute


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_result_of_the_task_is_what_the_airflow_task_returns(run_dag, shop, deferrable):
    with shop.working():
        run = run_dag(shop.dag(deferrable=deferrable))

    assert (run.state, xcom(run, "bill")) == ("success", {"order_id": 7})
    assert len(shop.billed) == 1


def test_the_log_shows_states_and_the_size_of_the_result_and_neither_arguments_nor_result(
    context, shop, caplog
):
    operator = shop.operator(deferrable=False, task="shop.retried", args={}, options={"max_retries": 3})
    with shop.working(), caplog.at_level("INFO"):
        result = operator.execute(context(operator))

    said = [record.getMessage() for record in caplog.records if "shop.retried" in record.getMessage()]
    assert result == 2
    assert said[0].startswith("enqueued task ")
    assert "is succeeded, attempt 2, its result has 1 bytes" in said[-1]


def test_a_failed_task_fails_the_airflow_task_with_its_error_and_a_retry_enqueues_another(run_dag, shop):
    shop.failures = 1
    with shop.working():
        run = run_dag(shop.dag(**RETRIES))

    assert (run.state, tries(run, "bill")) == ("success", 2)
    assert len(set(shop.billed)) == 2


def test_the_error_text_of_the_task_is_that_of_the_airflow_task(context, shop):
    shop.failures = 1
    operator = shop.operator(deferrable=False)

    with shop.working(), pytest.raises(AirflowException, match="ValueError: order 7 has no price"):
        operator.execute(context(operator))


def test_a_try_that_dies_after_it_has_enqueued_is_followed_by_one_that_waits_for_the_same_task(run_dag, shop):
    class DiesOnce(TaskOperator):
        def defer(self, **arguments):
            if not died:
                died.append(True)
                raise ConnectionError("the worker is gone")
            super().defer(**arguments)

    died: list[bool] = []
    with DAG("dies_once", schedule=None) as dag:
        DiesOnce(
            task_id="bill",
            task="shop.bill",
            args={"order_id": 7},
            task_queue="bills",
            namespace=shop.app.namespace,
            **RETRIES,
        )
    with shop.working():
        run = run_dag(dag)

    assert (run.state, tries(run, "bill"), xcom(run, "bill")) == ("success", 2, {"order_id": 7})
    assert len(shop.billed) == 1


def test_a_retry_attaches_to_a_task_that_has_not_ended_or_has_succeeded(context, shop, deferred):
    operator = shop.operator()
    first, second = deferred(operator), deferred(operator, 2)
    shop.work_off()
    result = operator.execute(context(operator, try_number=3))

    assert first == second
    assert shop.billed == [first]
    assert result == {"order_id": 7}


def test_other_task_instances_have_other_tasks(context, shop):
    operator = shop.operator()
    for fields in ({}, {"map_index": 1}, {"run_id": "other"}, {"dag_id": "other"}):
        with pytest.raises(TaskDeferred):
            operator.execute(context(operator, **fields))

    shop.work_off()
    assert len(set(shop.billed)) == 4


def test_after_each_failed_task_there_is_another_one_also_when_old_records_are_gone(shop, deferred, valkey):
    shop.failures = 2
    operator = shop.operator()
    ids = []
    for number in (1, 2, 3):
        ids.append(deferred(operator, number))
        if number < 3:
            shop.work_off()
    valkey.delete(shop.app.keys("bills").record(ids[0]))

    assert len(set(ids)) == 3
    assert deferred(operator, 4) == ids[2]


def test_attach_says_whether_a_cleared_task_is_enqueued_anew(context, shop, deferred):
    first = deferred(shop.operator())
    shop.work_off()

    cleared = deferred(shop.operator(attach="unfinished"), 2)
    retried = deferred(shop.operator(attach="unfinished"), 3)
    forced = deferred(shop.operator(attach="never"), 4)

    assert len({first, cleared, forced}) == 3
    assert retried == cleared


def test_a_result_that_is_too_large_for_xcom_is_refused_with_a_sentence(context, shop):
    large = {"task": "shop.fill", "args": {"size": 60_000}, "deferrable": False}
    operator, without = shop.operator(**large), shop.operator(**large, do_xcom_push=False)

    with shop.working():
        with pytest.raises(AirflowFailException, match=r"60,002 bytes is above max_result_bytes, 49,152"):
            operator.execute(context(operator))
        assert without.execute(context(without)) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"args": "{'order_id': 7}"}, "args must be a dict"),
        ({"options": {"ignore_result": True}}, "nothing could wait for the task"),
        ({"options": {"unique_for_s": 9}}, "unique_for_s"),
        ({"options": {"colour": "red"}}, "colour: not an option of a task"),
        ({"attach": "always"}, "attach must be one of succeeded, unfinished, never"),
        ({"args": {"order_id": "x" * (1 << 20)}}, "the limit is 1,048,576"),
    ],
)
def test_a_mistake_fails_at_once_and_without_retries(context, shop, arguments, words):
    operator = shop.operator(**arguments)

    with pytest.raises(AirflowFailException, match=words):
        operator.execute(context(operator))


def test_a_record_that_is_gone_fails_the_airflow_task(context, shop, deferred, valkey):
    operator = shop.operator()
    event = {"id": deferred(operator), "task_queue": "bills", "state": "unknown"}
    valkey.delete(shop.app.keys("bills").record(event["id"]))

    with pytest.raises(AirflowException, match="it has no record any more"):
        operator.execute_complete(context(operator), event)


def test_the_decorated_function_returns_the_arguments(run_dag, shop):
    with DAG("decorated_task", schedule=None) as dag:

        @task
        def find() -> int:
            return 11

        @task.conquiet_task(task="shop.bill", task_queue="bills", namespace=shop.app.namespace)
        def bill(order_id):
            return {"order_id": order_id}

        @task
        def total(bills):
            return len(list(bills))

        bill(find())
        total(bill.override(task_id="each").expand(order_id=[1, 2, 3]))

    with shop.working():
        run = run_dag(dag)

    assert (run.state, xcom(run, "bill"), xcom(run, "total")) == ("success", {"order_id": 11}, 3)
    assert len(set(shop.billed)) == 4
    json.dumps(xcom(run, "bill"))
