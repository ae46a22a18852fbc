"""Every operator, sensor, trigger and decorator once, on whichever Airflow is installed: `make matrix`."""

from __future__ import annotations

import importlib
import inspect
import os
import threading
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task
from airflow.triggers.base import BaseTrigger

from airflow_provider_conquiet.get_provider_info import get_provider_info
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator
from airflow_provider_conquiet.operators.consumers import PruneConsumersOperator
from airflow_provider_conquiet.operators.dead_letters import ReplayDeadLettersOperator
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from airflow_provider_conquiet.operators.handling import HandlingOperator
from airflow_provider_conquiet.operators.take import TakeOperator, messages_of
from airflow_provider_conquiet.operators.task import TaskOperator
from airflow_provider_conquiet.operators.trim import TrimOperator
from airflow_provider_conquiet.sensors.ack_by_run import AckByRunSensor
from airflow_provider_conquiet.sensors.backlog import BacklogSensor
from airflow_provider_conquiet.sensors.drain import DrainSensor
from airflow_provider_conquiet.sensors.message import MessageSensor
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.match import MatchTrigger
from airflow_provider_conquiet.triggers.message import MessageTrigger
from airflow_provider_conquiet.triggers.run import RunTrigger
from airflow_provider_conquiet.triggers.task import TaskTrigger
from conquiet.tasks import TaskApp, Worker, WorkerConfig
from tests.with_airflow import handlers
from tests.with_airflow.conftest import states, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

RECORD = "tests.with_airflow.handlers:record"
#: The classes that the tests of this file run; the last of them looks for those that were forgotten.
OPERATORS = {
    ClaimStaleOperator,
    PruneConsumersOperator,
    ReplayDeadLettersOperator,
    DrainOperator,
    EnqueueOperator,
    TakeOperator,
    TaskOperator,
    TrimOperator,
    AckByRunSensor,
    BacklogSensor,
    DrainSensor,
    MessageSensor,
}
TRIGGERS = {BacklogTrigger, MatchTrigger, MessageTrigger, RunTrigger, TaskTrigger}
DECORATORS = {"conquiet_task", "drain", "enqueue"}


def test_operators_of_streams_do_their_work_in_one_run(run_dag, stream, notes):
    names: dict[str, Any] = {"stream": stream, "group": "billing"}
    with DAG("operators", schedule=None) as dag:
        enqueue = EnqueueOperator(
            task_id="enqueue", stream=stream, payloads=[{"number": number} for number in range(3)]
        )
        drain = DrainOperator(
            task_id="drain", **names, handler=RECORD, idle_ms=20, max_messages=2, inbox=True
        )
        stale = ClaimStaleOperator(task_id="stale", **names, handler=RECORD, min_idle_ms=0)
        replay = ReplayDeadLettersOperator(task_id="replay", stream=stream)
        trim = TrimOperator(task_id="trim", stream=stream, retention_length=0)
        prune = PruneConsumersOperator(task_id="prune", **names, min_idle_ms=0)
        enqueue >> drain >> stale >> replay >> trim >> prune

    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    assert (xcom(run, "enqueue")["added"], xcom(run, "drain")["handled"], notes()) == (3, 2, ["0", "1"])


def test_sensors_see_what_is_there(run_dag, orders, stream, notes):
    orders.enqueue_many({"number": number} for number in range(3))
    names: dict[str, Any] = {"stream": stream, "group": "billing", "poke_interval": 0.05}
    with DAG("sensors", schedule=None) as dag:
        backlog = BacklogSensor(task_id="backlog", **names, min_lag=3)
        message = MessageSensor(
            task_id="message", stream=stream, equals={"number": 2}, start_id="0-0", poke_interval=0.05
        )
        drained = DrainSensor(task_id="drained", **names, handler=RECORD, count=3, idle_ms=20)
        backlog >> message >> drained

    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    assert notes() == ["0", "1", "2"]


def test_deferrable_ones_wait_in_the_triggerer(run_dag, orders, stream, notes):
    names: dict[str, Any] = {"stream": stream, "group": "billing", "deferrable": True}
    with DAG("deferred", schedule=None) as dag:
        backlog = BacklogSensor(task_id="backlog", **names, poke_interval=0.05)
        message = MessageSensor(
            task_id="message",
            stream=stream,
            equals={"number": 2},
            start_id="0-0",
            deferrable=True,
            poke_interval=0.05,
        )
        drain = DrainOperator(
            task_id="drain", **names, handler=RECORD, max_messages=2, idle_ms=20, poll_interval_s=0.05
        )
        drained = DrainSensor(
            task_id="drained", **names, handler=RECORD, count=1, idle_ms=20, poll_interval_s=0.05
        )
        backlog >> message >> drain >> drained
    timer = threading.Timer(2.0, lambda: orders.enqueue_many({"number": number} for number in range(3)))
    timer.start()

    run = run_dag(dag)
    timer.join()

    assert set(states(run).values()) == {"success"}
    assert notes() == ["0", "1", "2"]


def test_a_run_acks_what_it_has_taken(run_dag, orders, valkey, stream):
    orders.enqueue_many({"number": number} for number in range(3))
    with DAG("acked_by_run", schedule=None) as dag:
        taken = TakeOperator(task_id="take", stream=stream, group="billing")
        AckByRunSensor(task_id="ack", taken=taken.output, poke_interval=0.2)

        @task
        def ship(taken):
            return [msg.payload["number"] for msg in messages_of(taken)]

        ship(taken.output)

    run = run_dag(dag)

    assert (xcom(run, "ship"), xcom(run, "ack")["acked"]) == ([0, 1, 2], 3)
    assert valkey.xpending(stream, "billing")["pending"] == 0


def test_decorated_functions_are_tasks(run_dag, stream, notes, app):
    with DAG("decorated", schedule=None) as dag:

        @task.enqueue(stream=stream)
        def give():
            yield {"number": 1}

        @task.drain(stream=stream, group="billing", idle_ms=20)
        def bill(msg, session):
            handlers.record(msg, session)

        @task.conquiet_task(task="add", task_queue="numbers", namespace=app.namespace)
        def add():
            return {"left": 1, "right": 2}

        give() >> bill() >> add()  # type: ignore[call-arg]

    run = run_dag(dag)

    assert (xcom(run, "add"), notes()) == (3, ["1"])


@pytest.fixture
def app(valkey_url: str) -> Iterator[TaskApp]:
    """A worker with one task."""
    with TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as app:
        app.task(name="add")(lambda left, right: left + right)
        with Worker(app, WorkerConfig(queues=("numbers",), pool="thread", concurrency=1)):
            yield app


def test_a_task_of_conquiet_is_waited_for(run_dag, app):
    with DAG("conquiet_task", schedule=None) as dag:
        TaskOperator(
            task_id="add",
            task="add",
            args={"left": 2, "right": 3},
            task_queue="numbers",
            namespace=app.namespace,
        )

    assert xcom(run_dag(dag), "add") == 5


class WaitForEvent(BaseOperator):
    """Returns the first event of a trigger that assets have, as a deferred task gets it."""

    def __init__(self, *, trigger: BaseTrigger, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trigger = trigger

    def execute(self, context: Any) -> Any:
        self.defer(trigger=self.trigger, method_name="execute_complete")

    def execute_complete(self, context: Any, event: Any = None) -> Any:
        return event


def test_the_message_trigger_rings_and_knows_whether_this_airflow_has_an_ack_channel(run_dag, orders, stream):
    orders.enqueue({"number": 1})
    trigger = MessageTrigger(stream=stream, group="watcher")
    with DAG("message_trigger", schedule=None) as dag:
        WaitForEvent(task_id="wait", trigger=trigger)

    run = run_dag(dag)

    # The ack channel itself is tested in test_triggers_message.
    assert xcom(run, "wait")["stream"] == stream
    assert (trigger.shared_stream_key() is None) == (find_spec("airflow.triggers.shared_stream") is None)


def test_an_api_server_finds_a_connection_of_the_metadata_database(airflow_database, monkeypatch):
    """For the page and for the Test button."""
    from airflow.models.connection import Connection
    from airflow.sdk.execution_time import task_runner
    from airflow.utils.session import create_session

    fields: dict[str, Any] = {"host": "redis.example.com", "password": "swordfish"}
    with create_session() as session:
        session.add(Connection(conn_id="stored", conn_type="redis_streams", **fields))
    # As in its process: it says what it is, and no task has a supervisor.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)

    assert RedisStreamsHook("stored").url == "redis://:swordfish@redis.example.com:6379/0"


@pytest.mark.parametrize("of_kind", ["operators", "sensors", "triggers"])
def test_no_class_was_forgotten_here(of_kind):
    known = {cls.__name__ for cls in OPERATORS | TRIGGERS}
    for name in get_provider_info()[of_kind][0]["python-modules"]:
        # Airflow's provider for Spark is an extra of its own, with a file of tests of its own.
        if name.endswith(".spark"):
            continue
        module = importlib.import_module(name)
        for cls in vars(module).values():
            is_ours = inspect.isclass(cls) and cls.__module__ == name
            if is_ours and issubclass(cls, BaseOperator | BaseTrigger) and cls is not HandlingOperator:
                assert cls.__name__ in known, f"{cls.__name__} is not in this file"
    assert {one["name"] for one in get_provider_info()["task-decorators"]} == DECORATORS


def test_this_is_the_airflow_that_was_asked_for():
    wanted = os.environ.get("CONQUIET_TEST_AIRFLOW", "")

    assert version("apache-airflow-core").startswith(wanted)
