"""DrainOperator on a topic: one mapped task and one lease for each partition."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred
from airflow.sdk import DAG, task

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.drain import DrainOperator
from conquiet import DrainLimits
from conquiet.mq import ConsumerConfig, DeadLetters, Message, Producer, RetryPolicy, Topics, drain_partition
from conquiet.mq.own.leases import LeaseStore
from tests.eventually import HANG_S
from tests.with_airflow import handlers
from tests.with_airflow.conftest import xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

NOW = {"idle_ms": 20}


@pytest.fixture
def hook(airflow_connection):
    """The default connection's hook."""
    with RedisStreamsHook() as opened:
        yield opened


@pytest.fixture
def topic(hook, topic_name):
    """A topic of three partitions with thirty messages, ten in each."""
    created = Topics(hook.get_conn()).create(topic_name, partitions=3)
    messages = [Message(payload={"number": number}, partition=number % 3) for number in range(30)]
    Producer(hook.get_conn()).send_many(topic_name, messages)
    return created


def drain_of(topic, partition: int | None, **arguments) -> DrainOperator:
    defaults: dict[str, Any] = {"group": "billing", "handler": handlers.record}
    with DAG("partition_test", schedule=None):
        return DrainOperator(
            task_id="drain", topic=topic.name, partition=partition, **NOW | defaults | arguments
        )


def test_one_mapped_task_drains_each_partition(run_dag, topic, notes, hook):
    with DAG("partition_test", schedule=None) as dag:

        @task
        def find_partitions() -> list[int]:
            return RedisStreamsHook().partitions(topic.name)

        DrainOperator.partial(
            task_id="drain",
            topic=topic.name,
            group="billing",
            handler="tests.with_airflow.handlers:record",
            **NOW,
        ).expand(partition=find_partitions())

    run = run_dag(dag)

    reports = [xcom(run, "drain", map_index) for map_index in range(3)]
    assert [report["handled"] for report in reports] == [10, 10, 10]
    assert [report["remaining_lag"] for report in reports] == [0, 0, 0]
    assert sorted(map(int, notes())) == list(range(30))


@pytest.mark.parametrize(("on_busy", "state"), [("skip", "skipped"), ("fail", "failed")])
def test_a_partition_that_is_drained_elsewhere_is_visible(run_dag, topic, on_busy, state, notes):
    states: list[str] = []

    def drain_once_more(msg):
        if not states:
            run = run_dag(drain_of(topic, 0, on_busy=on_busy).dag)
            states.append(str(run.get_task_instance("drain").state))

    drain_partition(topic, 0, "billing", drain_once_more, limits=DrainLimits(max_messages=1, idle_ms=20))

    assert states == [state]
    assert notes() == []


def test_a_retry_takes_the_lease_and_the_messages_of_its_dead_try_at_once(
    context, topic, notes, hook, valkey
):
    dead = "airflow:dag:drain:run:-1:1"
    LeaseStore(topic, "billing").acquire(1, dead, 3_600_000)
    hook.queue(topic.keys.stream(1), "billing", dead).read(1, count=4)
    drain = drain_of(topic, 1)

    report = drain.execute(context(drain, try_number=2))

    assert (report["handled"], report["remaining_pending"]) == (10, 0)
    assert sorted(map(int, notes())) == list(range(1, 30, 3))
    assert valkey.xinfo_consumers(topic.keys.stream(1), "billing") == []


def test_a_task_that_was_run_anew_takes_the_lease_of_a_try_that_had_read_nothing(context, topic):
    LeaseStore(topic, "billing").acquire(1, "airflow:dag:drain:run:-1:2", 3_600_000)
    drain = drain_of(topic, 1)

    assert drain.execute(context(drain, try_number=1))["handled"] == 10


def test_without_a_partition_the_whole_topic_is_drained_into_one_report(run_dag, topic, notes):
    run = run_dag(drain_of(topic, None).dag)

    report = xcom(run, "drain")
    assert (report["handled"], report["remaining_lag"], report["busy"]) == (30, 0, [])
    assert (report["topic"], report["partition"]) == (topic.name, None)
    assert sorted(map(int, notes())) == list(range(30))


def test_a_whole_topic_is_drained_until_no_retry_waits(context, topic):
    policy = RetryPolicy(max_attempts=2, base_delay_ms=200, backoff="fixed")
    drain = drain_of(
        topic,
        None,
        handler=handlers.record_even,
        message_retry=policy,
        max_failures=None,
        until="settled",
    )

    report = drain.execute(context(drain))

    assert (report["handled"], report["dead_lettered"], report["remaining_pending"]) == (15, 15, 0)


def test_a_whole_topic_takes_the_leases_of_a_dead_try_and_skips_if_others_own_all(context, topic, notes):
    dead = "airflow:dag:drain:run:-1:1"
    for partition in topic.partitions:
        LeaseStore(topic, "billing").acquire(partition, dead, 3_600_000)
    drain = drain_of(topic, None)
    assert drain.execute(context(drain, try_number=2))["handled"] == 30

    for partition in topic.partitions:
        LeaseStore(topic, "billing").acquire(partition, "somebody", 3_600_000)
    with pytest.raises(AirflowSkipException):
        drain.execute(context(drain, try_number=2))


def test_a_deferred_drain_of_a_whole_topic_waits_for_any_of_its_partitions(context, topic, hook):
    drain = drain_of(topic, None, deferrable=True, poll_interval_s=0.05)
    assert drain.execute(context(drain))["handled"] == 30

    with pytest.raises(TaskDeferred) as deferred:
        drain.execute(context(drain))
    assert not rings(deferred.value.trigger, 0.5)
    Producer(hook.get_conn()).send(topic.name, {"number": 1}, partition=2)
    assert rings(deferred.value.trigger, HANG_S)


def test_with_raise_the_first_failed_message_ends_the_task_and_airflow_retries(run_dag, topic):
    drain = drain_of(
        topic, 0, handler=handlers.record_even, on_error="raise", retries=2, retry_delay=timedelta(0)
    )

    run = run_dag(drain.dag)

    assert (run.state, run.get_task_instance("drain").try_number) == ("failed", 3)


def test_failed_messages_are_retried_and_dead_lettered_by_their_own_policy(context, topic, hook):
    drain = drain_of(
        topic, 0, handler=handlers.record_even, message_retry=RetryPolicy(max_attempts=1), max_failures=None
    )

    report = drain.execute(context(drain))

    assert (report["handled"], report["dead_lettered"]) == (5, 5)
    assert DeadLetters(topic).count() == 5


def rings(trigger, within_s: float) -> bool:
    """Whether a deferred task's trigger rings."""

    async def first() -> None:
        async with aclosing(trigger.run()) as events:
            await anext(events)

    try:
        asyncio.run(asyncio.wait_for(first(), within_s))
    except TimeoutError:
        return False
    return True


def failing(_msg, _session=None):
    raise ValueError("not yet")


def leave_a_retry(topic, hook) -> str:
    Producer(hook.get_conn()).send(topic.name, {"number": 1}, partition=0)
    later = ConsumerConfig(retry=RetryPolicy(base_delay_ms=60_000, backoff="fixed"))
    drain_partition(
        topic, 0, "billing", failing, limits=DrainLimits(max_messages=1, idle_ms=20), config=later
    )
    return topic.keys.waiting("billing", 0)


def leave_a_delayed_message(topic, hook) -> str:
    Producer(hook.get_conn()).send(topic.name, {"number": 1}, partition=0, delay_ms=60_000)
    return topic.keys.delayed(0)


@pytest.mark.parametrize("leave", [leave_a_retry, leave_a_delayed_message])
def test_a_deferred_drain_wakes_up_when_what_waits_is_due_and_not_before(
    context, hook, topic_name, leave, notes
):
    topic = Topics(hook.get_conn()).create(topic_name, partitions=1)
    waiting_in = leave(topic, hook)
    drain = drain_of(topic, 0, deferrable=True, poll_interval_s=0.05)

    with pytest.raises(TaskDeferred) as deferred:
        drain.execute(context(drain))
    rang_before = rings(deferred.value.trigger, within_s=0.5)
    ((entry, _due),) = hook.get_conn().zrange(waiting_in, 0, -1, withscores=True)
    hook.get_conn().zadd(waiting_in, {entry: 1})

    assert not rang_before
    assert rings(deferred.value.trigger, within_s=HANG_S)
    assert drain.execute_complete(context(drain))["handled"] == 1
    assert notes() == ["1"]


def test_too_many_failed_messages_fail_the_task_without_retries(run_dag, topic):
    drain = drain_of(
        topic, 0, handler=handlers.record_even, max_failures=2, retries=2, retry_delay=timedelta(0)
    )

    run = run_dag(drain.dag)

    assert (run.state, run.get_task_instance("drain").try_number) == ("failed", 1)


def test_a_clean_end_leaves_no_consumer_name(context, topic, valkey):
    drain = drain_of(topic, 2)

    drain.execute(context(drain))

    assert valkey.xinfo_consumers(topic.keys.stream(2), "billing") == []


def test_a_partition_that_is_not_there_fails_at_once(run_dag, topic):
    run = run_dag(drain_of(topic, 7, retries=2, retry_delay=timedelta(0)).dag)

    assert (run.state, run.get_task_instance("drain").try_number) == ("failed", 1)


def test_sigterm_stops_between_messages_and_the_lease_is_given_back(run_dag, topic, notes, hook):
    def terminated_at_once(msg, session):
        os.kill(os.getpid(), signal.SIGTERM)
        handlers.record(msg, session)

    run = run_dag(drain_of(topic, 0, handler=terminated_at_once).dag)

    assert (run.state, notes()) == ("failed", ["0"])
    assert run_dag(drain_of(topic, 0).dag).state == "success"
    assert len(notes()) == 10
