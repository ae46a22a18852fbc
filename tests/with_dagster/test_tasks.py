"""Ops and assets that have a task done by a worker: one task at a time, over retries, kills and cancels."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import pytest

from conquiet.tasks import TaskApp, Worker, WorkerConfig, current_task
from dagster_conquiet import TaskSpec, build_task_asset, build_task_op
from tests.eventually import eventually
from tests.with_dagster.jobs_to_rebuild import task_job


class Shop:
    """An app in the test's own namespace, and what its tasks did."""

    def __init__(self, app: TaskApp) -> None:
        self.app = app
        self.ids: list[str] = []
        #: How many of the first calls fail.
        self.failures = 0
        app.task(name="shop.bill")(self.bill)
        app.task(name="shop.kill_caller")(self.kill_caller)

    def bill(self, cents: int, customer: str = "nobody") -> dict[str, Any]:
        self.ids.append(current_task().id)
        if len(self.ids) <= self.failures:
            raise ValueError(f"no bill of {cents}")
        return {"cents": cents, "customer": customer}

    def kill_caller(self, pid: int) -> int:
        self.ids.append(current_task().id)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextmanager
    def working(self) -> Iterator[None]:
        config = WorkerConfig(pool="thread", concurrency=1, heartbeat_ttl_s=60.0)
        with Worker(self.app, config):
            yield


@pytest.fixture
def shop(server_url: str, stream: str) -> Iterator[Shop]:
    with TaskApp(server_url, namespace=stream) as app:
        yield Shop(app)


@pytest.fixture
def bill(stream: str) -> TaskSpec:
    return TaskSpec(task="shop.bill", namespace=stream, options={"max_retries": 0})


def job_of(spec: TaskSpec, **options: Any) -> dg.JobDefinition:
    """A job whose second op has the task done."""

    @dg.op
    def find() -> dict[str, Any]:
        return {"cents": 5}

    task = build_task_op(spec, name="bill", **options)

    @dg.job
    def billing() -> None:
        task(find())

    return billing


def metadata_of(result: Any, node: str) -> dict[str, Any]:
    [output] = [event for event in result.events_for_node(node) if event.event_type_value == "STEP_OUTPUT"]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def test_an_op_returns_the_result_and_tells_of_its_task(shop, bill, resources, instance, monkeypatch):
    monkeypatch.setenv("CONQUIET_PAGE_URL", "https://queues.example/")
    with shop.working():
        result = job_of(bill).execute_in_process(resources=resources, instance=instance)

    assert result.output_for_node("bill") == {"cents": 5, "customer": "nobody"}
    metadata = metadata_of(result, "bill")
    assert (metadata["task_id"], metadata["attempts"]) == (shop.ids[0], 1)
    assert {"seconds", "result_bytes", "worker", "task_queue"} < set(metadata)
    assert metadata["page"] == f"https://queues.example/task?queue=default&id={shop.ids[0]}"
    said = [record.user_message for record in instance.all_logs(result.run_id) if record.user_message]
    assert any(line.startswith("enqueued task ") for line in said)
    assert any("is succeeded, attempt 0, its result has 31 bytes" in line for line in said)
    assert not any("nobody" in line for line in said)


def test_an_asset_gets_its_arguments_from_its_context(shop, bill, resources, instance):
    customers = dg.StaticPartitionsDefinition(["a", "b"])
    asset = build_task_asset(
        bill,
        key="bills",
        args=lambda context: {"cents": 7, "customer": context.partition_key},
        partitions_def=customers,
    )

    with shop.working():
        result = dg.materialize([asset], resources=resources, instance=instance, partition_key="b")

    assert result.output_for_node("bills") == {"cents": 7, "customer": "b"}


def test_a_failed_task_fails_the_step_with_its_error(shop, bill, resources, instance):
    shop.failures = 1
    with shop.working():
        result = job_of(bill).execute_in_process(resources=resources, instance=instance, raise_on_error=False)

    [failure] = [event for event in result.events_for_node("bill") if event.is_step_failure]
    assert "ValueError: no bill of 5" in str(failure.step_failure_data.error)


def test_a_step_that_is_retried_after_a_failed_task_enqueues_another(shop, bill, resources, instance):
    shop.failures = 2
    job = job_of(bill, retry_policy=dg.RetryPolicy(max_retries=2))

    with shop.working():
        result = job.execute_in_process(resources=resources, instance=instance)

    assert result.success
    assert len(set(shop.ids)) == 3


def test_a_step_that_is_killed_while_it_waits_is_retried_and_waits_for_the_same_task(
    shop, place, kept_instance
):
    with shop.working():
        result = dg.execute_job(dg.reconstructable(task_job), instance=kept_instance)

    assert result.success
    assert len([event for event in result.all_events if event.is_step_up_for_retry]) == 1
    assert len(shop.ids) == 1


def test_a_step_that_is_cancelled_revokes_its_task(shop: Shop, bill, resources, instance):
    def waits() -> int:
        """Whoever begins to wait for a task looks first at the end of its queue's events."""
        stats = shop.app.client.info("commandstats")
        return int(stats.get("cmdstat_xrevrange", {"calls": 0})["calls"])

    def cancel() -> None:
        eventually(lambda: waits() > before)
        os.kill(os.getpid(), signal.SIGTERM)

    before = waits()
    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        job_of(bill).execute_in_process(resources=resources, instance=instance)
    cancelling.join()

    [run] = instance.get_runs()
    said = [record.user_message for record in instance.all_logs(run.run_id)]
    [ending] = [line for line in said if "as its step was cancelled" in line]
    task_id = ending.split()[1]
    status = shop.app.handle(task_id).status()
    assert status is not None
    assert status.state == "revoked"


def test_definitions_are_named_after_the_task_and_need_no_server(bill):
    assert build_task_op(bill).name == "task__shop__bill"
    assert build_task_asset(bill).key == dg.AssetKey(["shop__bill"])
