"""DrainOperator on a stream: what it handles, what it returns, and how its retries go on."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG, Asset, AssetAlias

from airflow_provider_conquiet.operators.drain import DrainOperator
from conquiet import DrainLimits
from tests.eventually import eventually
from tests.with_airflow import handlers
from tests.with_airflow.conftest import asset_events, states, tries, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")


def drain_dag(stream: str, **arguments) -> DAG:
    """A DAG of one drain."""
    defaults = {"stream": stream, "group": "billing", "handler": "tests.with_airflow.handlers:record"}
    with DAG("drain_test", schedule=None) as dag:
        DrainOperator(task_id="drain", **defaults | {"idle_ms": 20} | arguments)
    return dag


def enqueue(orders, count: int) -> list[str]:
    return orders.enqueue_many([{"number": number} for number in range(count)])


def test_every_message_is_handled_once_and_acked(run_dag, orders, valkey, stream, notes):
    enqueue(orders, 25)

    run = run_dag(drain_dag(stream))

    assert run.state == "success"
    assert notes() == [str(number) for number in range(25)]
    assert valkey.xpending(stream, "billing")["pending"] == 0


@pytest.mark.parametrize("payload", [handlers.Numbered, "tests.with_airflow.handlers:Numbered"])
def test_payloads_are_of_the_type_that_is_given(run_dag, orders, stream, notes, payload):
    enqueue(orders, 3)

    run = run_dag(drain_dag(stream, handler=handlers.record_numbered, payload=payload))

    assert run.state == "success"
    assert notes() == ["0", "1", "2"]


def test_xcom_has_counts_ids_and_the_remaining_lag(run_dag, orders, stream):
    ids = enqueue(orders, 7)

    report = xcom(run_dag(drain_dag(stream, max_messages="5")), "drain")

    assert report["handled"] == 5
    assert (report["first_id"], report["last_id"]) == (ids[0], ids[4])
    assert (report["remaining_lag"], report["remaining_pending"]) == (2, 0)
    assert report["stopped_by"] == "max_messages"


def test_xcom_has_no_payload_even_if_an_error_quotes_one(run_dag, orders, stream):
    ids = orders.enqueue_many([{"number": number, "secret": "swordfish"} for number in (1, 3)])

    report = xcom(run_dag(drain_dag(stream, handler=handlers.record_even)), "drain")

    assert report["failed_ids"] == ids
    assert "swordfish" not in json.dumps(report)


def test_templates_name_the_stream(run_dag, orders, stream, notes):
    enqueue(orders, 1)

    run_dag(drain_dag("{{ dag_run.conf['stream'] }}"), run_conf={"stream": stream})

    assert notes() == ["0"]


def test_a_clean_end_leaves_no_consumer_name(run_dag, orders, valkey, stream):
    enqueue(orders, 3)

    run_dag(drain_dag(stream))

    assert valkey.xinfo_consumers(stream, "billing") == []


def test_a_second_try_takes_back_what_the_first_one_left_then_reads_on(
    run_dag, orders, valkey, stream, notes
):
    enqueue(orders, 5)
    seen = []

    def fail_once(msg, session):
        seen.append(msg.payload["number"])
        if seen == [0, 1]:
            enqueue(orders, 1)
            raise RuntimeError("the first try ends here")
        handlers.record(msg, session)

    run = run_dag(drain_dag(stream, handler=fail_once, on_error="raise", retries=1, retry_delay=timedelta(0)))

    assert (run.state, tries(run, "drain")) == ("success", 2)
    assert seen == [0, 1, 1, 2, 3, 4, 0]
    assert sorted(notes()) == ["0", "0", "1", "2", "3", "4"]
    assert valkey.xpending(stream, "billing")["pending"] == 0
    assert valkey.xinfo_consumers(stream, "billing") == []


def test_the_consumer_name_is_another_one_for_every_try(run_dag, orders, stream, valkey):
    enqueue(orders, 2)
    names = []

    def fail_once(msg, session):
        names.append(
            [known["name"] for known in valkey.xinfo_consumers(stream, "billing") if known["pending"]]
        )
        if len(names) == 1:
            raise RuntimeError("once")

    run = run_dag(drain_dag(stream, handler=fail_once, on_error="raise", retries=1, retry_delay=timedelta(0)))

    prefix = f"airflow:drain_test:drain:{run.run_id}:-1"
    assert (names[0], names[1][-1]) == ([f"{prefix}:1"], f"{prefix}:2")


def test_an_inbox_skips_what_was_handled_before(run_dag, orders, valkey, stream, notes):
    ids = enqueue(orders, 2)
    run_dag(drain_dag(stream, inbox=True))
    valkey.xgroup_setid(stream, "billing", "0")

    report = xcom(run_dag(drain_dag(stream, inbox=True)), "drain")

    assert (report["skipped"], report["handled"], report["last_id"]) == (2, 0, ids[1])
    assert notes() == ["0", "1"]


def test_an_empty_stream_is_a_success_unless_it_is_to_be_skipped(run_dag, stream):
    assert states(run_dag(drain_dag(stream))) == {"drain": "success"}
    assert states(run_dag(drain_dag(stream, skip_on_empty=True))) == {"drain": "skipped"}


def test_asset_events_have_counts_and_the_last_id(run_dag, orders, stream):
    ids = enqueue(orders, 3)
    asset = Asset(f"redis+stream://127.0.0.1/{stream}")

    run = run_dag(drain_dag(stream, outlets=[asset, AssetAlias("orders")]))

    told = asset_events(run)
    assert told[f"redis+stream://127.0.0.1:6379/{stream}"]["handled"] == 3
    assert told[f"redis+stream://127.0.0.1:6379/{stream}"]["last_id"] == ids[2]
    assert len(told) == 2


def test_sigterm_stops_between_messages_and_the_rest_stays_pending(run_dag, orders, valkey, stream, notes):
    enqueue(orders, 5)

    def terminated_at_one(msg, session):
        if msg.payload["number"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        handlers.record(msg, session)

    run = run_dag(drain_dag(stream, handler=terminated_at_one))

    assert run.state == "failed"
    assert notes() == ["0", "1"]
    assert valkey.xpending(stream, "billing")["pending"] == 3


def test_a_deferrable_drain_with_a_backlog_drains_at_once(run_dag, orders, stream, notes):
    enqueue(orders, 3)

    run = run_dag(drain_dag(stream, deferrable=True))

    assert (run.state, notes()) == ("success", ["0", "1", "2"])


def test_a_deferrable_drain_without_a_backlog_leaves_its_worker(context, stream):
    drain: Any = drain_dag(stream, deferrable=True, poll_interval_s=0.05).get_task("drain")

    with pytest.raises(TaskDeferred) as deferred:
        drain.execute(context(drain))

    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_provider_conquiet.triggers.backlog.BacklogTrigger"
    assert (arguments["stream"], arguments["ring_again_s"]) == (stream, None)


def test_a_deferrable_drain_takes_what_was_handed_back_before_it_waits(context, orders, stream, notes):
    enqueue(orders, 2)
    orders.hand_back(orders.read(1, count=2))
    drain: Any = drain_dag(stream, deferrable=True).get_task("drain")

    report = drain.execute(context(drain))

    assert (report["handled"], notes()) == (2, ["0", "1"])


def test_a_deferrable_drain_waits_while_others_have_all_that_is_pending(context, orders, stream):
    enqueue(orders, 2)
    orders.read(1, count=2)
    drain: Any = drain_dag(stream, deferrable=True).get_task("drain")

    with pytest.raises(TaskDeferred):
        drain.execute(context(drain))


def test_a_deferred_drain_looks_again_for_what_a_drain_has_left_that_dies_meanwhile(
    context, orders, stream, notes
):
    enqueue(orders, 2)
    pending = orders.read(1, count=2)
    drain: Any = drain_dag(stream, deferrable=True, wait_timeout=timedelta(hours=1)).get_task("drain")
    late = {"lag": 0, "pending": 2}

    with pytest.raises(TaskDeferred) as first:
        drain.execute(context(drain))
    with pytest.raises(TaskDeferred) as second:
        drain.execute_complete(context(drain), event=late, **(first.value.kwargs or {}))
    orders.hand_back(pending)
    report = drain.execute_complete(context(drain), event=late, **(second.value.kwargs or {}))

    assert [one.value.trigger.latest_s for one in (first, second)] == [60.0, 120.0]
    assert timedelta(0) < second.value.timeout < first.value.timeout
    assert (report["handled"], notes()) == (2, ["0", "1"])


def test_a_deferred_drain_goes_on_without_its_event(context, orders, stream, notes):
    enqueue(orders, 2)
    drain: Any = drain_dag(stream, deferrable=True).get_task("drain")

    report = drain.execute_complete(context(drain))

    assert (report["handled"], notes()) == (2, ["0", "1"])


def test_arguments_that_name_nothing_to_drain_are_refused_when_the_dag_is_read():
    with pytest.raises(ValueError, match="drains a stream, a topic, or one partition of a topic"):
        DrainOperator(task_id="drain", group="billing", handler=handlers.record)


def test_an_idle_deferrable_drain_wakes_up_with_the_first_message(run_dag, orders, valkey, stream, notes):
    def looks() -> int:
        return valkey.info("commandstats").get("cmdstat_xinfo|groups", {"calls": 0})["calls"]

    def enqueue_when_the_trigger_looks(before: int) -> None:
        try:
            # The task itself looks once before it leaves its worker.
            eventually(lambda: looks() > before + 4)
        finally:
            enqueue(orders, 3)

    with ThreadPoolExecutor(1) as beside:
        enqueued = beside.submit(enqueue_when_the_trigger_looks, looks())
        run = run_dag(drain_dag(stream, deferrable=True, poll_interval_s=0.05, idle_ms=300))
        enqueued.result()

    assert (run.state, notes()) == ("success", ["0", "1", "2"])


def test_the_limits_are_those_of_every_drain_unless_given(stream):
    drain = DrainOperator(task_id="drain", stream=stream, group="billing", handler=handlers.record)

    nothing: Any = None
    limits = drain.drain_arguments(nothing, nothing)["limits"]

    assert replace(limits, should_stop=None) == DrainLimits()


def test_a_function_can_be_the_handler_of_mapped_drains(run_dag, orders, stream, notes):
    enqueue(orders, 4)
    with DAG("drain_test", schedule=None) as dag:
        DrainOperator.partial(
            task_id="drain", stream=stream, group="billing", handler=handlers.record, idle_ms=20
        ).expand(max_messages=[1, 2])

    run_dag(dag)

    assert notes() == ["0", "1", "2"]
