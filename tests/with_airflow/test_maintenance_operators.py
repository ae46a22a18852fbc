"""ClaimStale, ReplayDeadLetters, Trim and PruneConsumers: recovery and house-keeping as tasks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator
from airflow_provider_conquiet.operators.consumers import PruneConsumersOperator
from airflow_provider_conquiet.operators.dead_letters import ReplayDeadLettersOperator
from airflow_provider_conquiet.operators.trim import TrimOperator
from conquiet import DrainLimits
from conquiet.consume import dead_letter_stream
from conquiet.mq import ConsumerConfig, DeadLetters, Message, Producer, RetryPolicy, Topics, drain_partition
from tests.with_airflow import handlers
from tests.with_airflow.conftest import xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

RECORD = "tests.with_airflow.handlers:record"


def dag_of(operator: type, **arguments) -> DAG:
    """A DAG of one task, which has as many retries as a mistake must not use."""
    with DAG("maintenance_test", schedule=None) as dag:
        operator(task_id="it", retries=2, retry_delay=timedelta(0), **arguments)
    return dag


def report_of(run_dag, operator: type, run_conf=None, **arguments):
    return xcom(run_dag(dag_of(operator, **arguments), run_conf=run_conf), "it")


@pytest.fixture
def left_behind(orders):
    """Four messages that a dead worker has read and not acked."""
    orders.enqueue_many([{"number": number} for number in range(4)])
    return [msg.id for msg in orders.read(1, count=4)]


def test_stale_messages_are_claimed_handled_and_acked(run_dag, left_behind, valkey, stream, notes):
    arguments = {"stream": stream, "group": "billing", "handler": RECORD, "min_idle_ms": "0"}

    report = report_of(run_dag, ClaimStaleOperator, **arguments)

    assert (report["handled"], report["first_id"], report["last_id"]) == (4, left_behind[0], left_behind[3])
    assert notes() == ["0", "1", "2", "3"]
    assert valkey.xpending(stream, "billing")["pending"] == 0


def test_messages_that_are_not_stale_are_left(run_dag, left_behind, stream, notes):
    report = report_of(run_dag, ClaimStaleOperator, stream=stream, group="billing", handler=RECORD)

    assert (report["read"], report["remaining_pending"], notes()) == (0, 4, [])


def test_messages_over_max_deliveries_become_dead_letters(run_dag, left_behind, valkey, stream, notes):
    arguments = {"stream": stream, "group": "billing", "handler": RECORD, "min_idle_ms": 0}

    report = report_of(run_dag, ClaimStaleOperator, max_deliveries=1, **arguments)

    assert (report["dead_lettered"], notes()) == (4, [])
    assert valkey.xlen(dead_letter_stream(stream)) == 4


@pytest.fixture
def letters(airflow_connection, topic_name):
    """Five dead letters of a topic."""
    with RedisStreamsHook() as hook, hook.engine() as engine:
        topic = Topics(hook.get_conn()).create(topic_name, partitions=1)
        messages = [Message(payload={"number": number}) for number in (1, 3, 5, 7, 9)]
        Producer(hook.get_conn()).send_many(topic_name, messages)
        once = ConsumerConfig(retry=RetryPolicy(max_attempts=1))
        drain_partition(
            topic,
            0,
            "billing",
            handlers.record_even,
            engine,
            DrainLimits(max_messages=9, idle_ms=20),
            config=once,
        )
        yield DeadLetters(topic)


def test_a_dry_run_only_counts_dead_letters(run_dag, letters):
    conf = {"dry": True}
    arguments = {"topic": letters.topic.name, "is_dry_run": "{{ dag_run.conf['dry'] }}"}

    report = report_of(run_dag, ReplayDeadLettersOperator, run_conf=conf, **arguments)

    assert (report["replayed"], report["is_dry_run"]) == (5, True)
    assert letters.count() == 5


def test_dead_letters_are_replayed_once_up_to_the_limit(run_dag, letters):
    report = report_of(
        run_dag, ReplayDeadLettersOperator, topic=letters.topic.name, limit="2", per_second="1000"
    )

    assert (report["replayed"], report["remaining"]) == (2, 3)
    assert letters.count() == 3


def test_filters_choose_the_dead_letters(run_dag, letters):
    arguments = {"topic": letters.topic.name, "error_type": "KeyError", "since_ms": "", "group": "billing"}

    assert report_of(run_dag, ReplayDeadLettersOperator, **arguments)["replayed"] == 0
    assert (
        report_of(run_dag, ReplayDeadLettersOperator, **arguments | {"error_type": "ValueError"})["replayed"]
        == 5
    )


def test_dead_letters_of_a_plain_stream_are_replayed_to_their_group(
    run_dag, left_behind, valkey, stream, notes
):
    arguments = {"stream": stream, "group": "billing", "handler": RECORD, "min_idle_ms": 0}
    report_of(run_dag, ClaimStaleOperator, max_deliveries=1, **arguments)

    report = report_of(run_dag, ReplayDeadLettersOperator, stream=stream)
    claimed = report_of(run_dag, ClaimStaleOperator, **arguments)

    assert (report["stream"], report["replayed"], report["remaining"]) == (stream, 4, 0)
    assert (claimed["handled"], notes()) == (4, ["0", "1", "2", "3"])
    assert valkey.xpending(stream, "billing")["pending"] == 0


def test_a_topic_that_is_not_there_fails_at_once(run_dag, topic_name):
    run = run_dag(dag_of(ReplayDeadLettersOperator, topic=topic_name))

    assert (run.state, run.get_task_instance("it").try_number) == ("failed", 1)


def test_a_trim_removes_what_is_finished_and_keeps_what_is_not(run_dag, orders, valkey, stream):
    orders.enqueue_many([{"number": number} for number in range(10)])
    done = orders.read(1, count=6)
    orders.ack_ids([msg.id for msg in done])

    report = report_of(run_dag, TrimOperator, stream=stream, retention_length="0")

    assert report["removed"] == valkey.xinfo_stream(stream)["entries-added"] - valkey.xlen(stream)
    assert report["removed"] > 0
    assert [msg.payload["number"] for msg in orders.read(1, count=9)] == [6, 7, 8, 9]


def test_dead_letters_are_trimmed_when_asked(run_dag, letters):
    before = letters.count()

    report = report_of(
        run_dag, TrimOperator, topic=letters.topic.name, retention_length="1", dead_letters=True
    )

    assert (report["removed"], letters.count()) == (before - 1, 1)


@pytest.mark.parametrize("mistake", [{}, {"retention_length": "many"}, {"dead_letters": True}])
def test_a_trim_without_a_retention_fails_at_once(run_dag, orders, stream, mistake):
    orders.enqueue({"number": 1})

    run = run_dag(dag_of(TrimOperator, stream=stream, **mistake))

    assert (run.state, run.get_task_instance("it").try_number) == ("failed", 1)


def test_consumers_with_nothing_pending_are_pruned_and_others_stay(run_dag, left_behind, valkey, stream):
    valkey.xgroup_createconsumer(stream, "billing", "gone")
    arguments = {"stream": stream, "group": "billing", "min_idle_ms": "0"}

    dry = report_of(run_dag, PruneConsumersOperator, is_dry_run=True, **arguments)
    report = report_of(run_dag, PruneConsumersOperator, **arguments)

    assert (dry["pruned"], report["names"]) == (1, ["gone"])
    assert [known["name"] for known in valkey.xinfo_consumers(stream, "billing")] == ["outside"]


def test_consumers_that_were_active_lately_stay(run_dag, orders, valkey, stream):
    valkey.xgroup_createconsumer(stream, "billing", "fresh")

    assert report_of(run_dag, PruneConsumersOperator, stream=stream, group="billing")["pruned"] == 0


def test_consumers_of_a_topic_are_pruned_in_every_partition(run_dag, letters, valkey):
    valkey.xgroup_createconsumer(letters.topic.keys.stream(0), "billing", "gone")

    report = report_of(run_dag, PruneConsumersOperator, topic=letters.topic.name, group="billing")

    assert "gone" in report["names"]
