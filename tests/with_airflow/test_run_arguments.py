"""What a run may decide: template fields, and the partitions of assets."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
from airflow.sdk import DAG, Asset, BaseOperator
from sqlalchemy import select

from airflow_provider_conquiet.airflow_names import HAS_ASSET_PARTITIONS
from airflow_provider_conquiet.get_provider_info import get_provider_info
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from airflow_provider_conquiet.operators.take import TakeOperator
from airflow_provider_conquiet.operators.trim import TrimOperator
from airflow_provider_conquiet.sensors.backlog import BacklogSensor
from airflow_provider_conquiet.task_try import TaskTry
from conquiet import Inbox
from conquiet.mq import Topics
from tests.with_airflow.conftest import xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

RECORD = "tests.with_airflow.handlers:record"


def test_what_a_run_may_decide_is_rendered(run_dag, orders, stream, notes):
    orders.enqueue_many({"number": number} for number in range(4))
    with DAG("rendered", schedule=None) as dag:
        DrainOperator(
            task_id="drain",
            stream="{{ dag_run.conf['stream'] }}",
            group="{{ dag_run.conf['group'] }}",
            handler="{{ dag_run.conf['handler'] }}",
            inbox="{{ dag_run.conf['inbox'] }}",
            idle_ms="{{ dag_run.conf['idle_ms'] }}",
            max_messages="{{ dag_run.conf['max_messages'] }}",
            max_failures="{{ dag_run.conf.get('max_failures') }}",
            take_over_dead="{{ dag_run.conf['take_over_dead'] }}",
        )
    conf = {"stream": stream, "group": "billing", "handler": RECORD, "inbox": "seen_orders", "idle_ms": 20}

    run = run_dag(dag, run_conf=conf | {"max_messages": 3, "take_over_dead": False})

    assert (xcom(run, "drain")["handled"], notes()) == (3, ["0", "1", "2"])


def test_what_a_run_may_decide_of_the_other_operators_is_rendered(run_dag, topic_name):
    with RedisStreamsHook() as hook:
        Topics(hook.get_conn()).create(topic_name, partitions=2)
    with DAG("rendered_others", schedule=None) as dag:
        enqueue = EnqueueOperator(
            task_id="enqueue",
            topic=topic_name,
            payloads=[{"customer": "a"}, {"customer": "a"}],
            key_field="{{ dag_run.conf['key'] }}",
            is_deduped="{{ dag_run.conf['is_deduped'] }}",
            dedupe_window_ms="{{ dag_run.conf['window'] }}",
        )
        trim = TrimOperator(
            task_id="trim",
            topic=topic_name,
            retention_length="{{ dag_run.conf.get('length') }}",
            retention_ms=1_000,
            dead_letters="{{ dag_run.conf['dead_letters'] }}",
        )
        take = TakeOperator(
            task_id="take", stream=topic_name, group="g", skip_on_empty="{{ dag_run.conf['skip'] }}"
        )
        enqueue >> trim >> take

    conf = {"key": "customer", "is_deduped": False, "window": 5_000, "dead_letters": True, "skip": False}
    run = run_dag(dag, run_conf=conf)

    assert (xcom(run, "enqueue")["added"], xcom(run, "take")["taken"]) == (2, 0)
    assert xcom(run, "trim") == {"name": topic_name, "removed": 0}


def classes() -> list[type]:
    """The operators and sensors of the provider."""
    info = get_provider_info()
    names = [name for kind in ("operators", "sensors") for name in info[kind][0]["python-modules"]]
    found = [vars(import_module(name)).values() for name in names]
    return [
        one
        for name, values in zip(names, found, strict=True)
        for one in values
        if isinstance(one, type) and issubclass(one, BaseOperator) and one.__module__ == name
    ]


#: What decides how a DAG is built, and what no text can be.
NO_TEMPLATES = {
    *(
        "deferrable",
        "poll_interval_s",
        "poke_interval",
        "mode",
        "wait_timeout",
        "conn_id",
        "deploy_mode",
        "job",
    ),
    *("secrets", "is_deduped", "dedupe_key", "message_retry", "payload", "batch", "order_by", "until"),
    *("skip_on_empty", "on_busy", "asset_partitions"),
}


@pytest.mark.parametrize("of_class", classes())
def test_all_arguments_but_those_that_build_the_dag_are_template_fields(of_class):
    arguments = set(inspect.signature(of_class.__init__).parameters) - {"self", "kwargs"}

    assert arguments - set(of_class.template_fields) <= NO_TEMPLATES


def test_an_inbox_is_a_table_or_true_or_false_also_as_text():
    def inbox_of(value):
        operator = DrainOperator(task_id="drain", stream="s", group="g", handler=RECORD, inbox=value)
        task_try = TaskTry(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
        return operator.drain_arguments(RedisStreamsHook(), task_try)["inbox"]

    assert (inbox_of(False), inbox_of("False")) == (None, None)
    assert all(isinstance(inbox_of(value), Inbox) for value in (True, "True", "seen_orders"))


@pytest.mark.skipif(not HAS_ASSET_PARTITIONS, reason="Airflow before 3.3 has no asset partitions")
def test_a_drain_of_a_partition_can_put_its_events_on_that_partition_of_the_asset(run_dag, topic_name):
    with RedisStreamsHook() as hook:
        Topics(hook.get_conn()).create(topic_name, partitions=2)
    bills = Asset(f"bills_{topic_name}")
    with DAG("by_asset_partition", schedule=None) as dag:
        DrainOperator.partial(
            task_id="drain",
            topic=topic_name,
            group="billing",
            handler=RECORD,
            idle_ms=20,
            outlets=[bills],
            asset_partitions=True,
        ).expand(partition=[0, 1])

    run = run_dag(dag)

    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id)).all()
        assert {event.partition_key for event in events} == {"0", "1"}


def test_the_thresholds_of_the_backlog_sensor_are_rendered(run_dag, orders, stream):
    orders.enqueue_many({"number": number} for number in range(3))
    with DAG("rendered_thresholds", schedule=None) as dag:
        BacklogSensor(
            task_id="wait",
            stream=stream,
            group="billing",
            min_lag="{{ dag_run.conf['least'] }}",
            min_age_s="{{ dag_run.conf.get('age') }}",
            poke_interval=0.05,
        )

    run = run_dag(dag, run_conf={"least": 3})

    assert xcom(run, "wait")["lag"] == 3


def test_a_threshold_that_is_a_mistake_is_refused_when_the_dag_is_read():
    with pytest.raises(ValueError, match="min_lag must be a positive number"):
        BacklogSensor(task_id="wait", stream="s", group="g", min_lag=0)
