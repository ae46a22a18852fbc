"""Rows as tasks: each row is one task, whatever attempts of Spark's tasks die."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from conquiet.spark import publish_tasks
from conquiet.tasks import TaskApp, Worker, WorkerConfig
from conquiet.tasks.envelope import TaskEnvelope


@pytest.fixture
def app(valkey_url: str) -> Iterator[TaskApp]:
    with TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as opened:
        yield opened


def envelopes(app: TaskApp, priority: int = 5) -> list[TaskEnvelope]:
    entries: Any = app.client.xrange(app.keys("bills").streams[priority])
    return [TaskEnvelope.decode(fields[b"data"]) for _, fields in entries]


def publish(df, app: TaskApp, **arguments) -> None:
    publish_tasks(
        df, url=app.settings.redis_url, task="shop.bill", queue="bills", namespace=app.namespace, **arguments
    )


def test_each_row_is_run_once_by_a_worker(spark, app: TaskApp):
    billed: list[tuple[int, str]] = []

    @app.task(name="shop.bill")
    def bill(order_id: int, customer: str | None = None) -> None:
        billed.append((order_id, str(customer)))

    df = spark.range(200).selectExpr("id AS order_id", "concat('ü-', id) AS customer")
    publish(df, app)
    with Worker(app, WorkerConfig(queues=("bills",), pool="thread", concurrency=1)):
        last = app.enqueue("shop.bill", {"order_id": -1}, queue="bills", priority=0)
        last.result(timeout_s=600)

    assert sorted(billed) == sorted([(-1, "None"), *((n, f"ü-{n}") for n in range(200))])


def test_a_task_is_an_envelope_as_any_other_with_the_options_of_the_call(spark, app):
    df = spark.range(3).selectExpr("id AS order_id", "'x' AS other")
    publish(df, app, columns=["order_id"], task_options={"priority": 7, "max_retries": 9, "expires_s": 60})

    found = envelopes(app, 7)
    assert sorted(one.args["order_id"] for one in found) == [0, 1, 2]
    assert {(one.name, one.queue, one.priority, one.max_retries) for one in found} == {
        ("shop.bill", "bills", 7, 9)
    }
    assert all("expiresAt" in one.meta for one in found)
    assert len({one.id for one in found}) == 3
    assert all(part.isdecimal() for one in found for part in one.id.split("-"))
    assert app.queues() == ["bills"]


def test_equal_rows_are_tasks_of_their_own(spark, app):
    publish(spark.range(50).selectExpr("1 AS order_id"), app)

    assert len({one.id for one in envelopes(app)}) == 50


def test_an_attempt_that_dies_after_it_has_added_rows_is_followed_by_one_that_adds_the_rest(
    spark, app, tmp_path
):
    died = str(tmp_path / "died")

    def die_once(batches):
        import os

        for number, batch in enumerate(batches):
            if number == 3 and not os.path.exists(died):
                open(died, "w").close()
                os._exit(1)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        df = spark.range(0, 4_000, 1, 1).mapInArrow(die_once, "id long").selectExpr("id AS order_id")
        publish(df, app)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    counts = Counter(one.args["order_id"] for one in envelopes(app))
    assert (tmp_path / "died").exists()
    assert counts == dict.fromkeys(range(4_000), 1)


def test_a_named_write_that_is_run_again_adds_nothing(spark, app):
    df = spark.range(0, 100, 1, 2).selectExpr("id AS order_id")
    for _ in range(2):
        publish(df, app, options={"dedupeId": "import-1"})

    assert len(envelopes(app)) == 100


@pytest.mark.parametrize("task_options", [{"delay_s": 5}, {"unique_for_s": 5}])
def test_what_rows_cannot_have_is_refused(spark, app, task_options):
    with pytest.raises(ValueError, match="due at once"):
        publish(spark.range(1), app, task_options=task_options)


def test_a_row_that_is_too_large_is_refused_with_its_size(spark, app):
    with pytest.raises(PySparkException, match="the limit is 1,048,576"):
        publish(spark.range(1).selectExpr("repeat('x', 2000000) AS text"), app)

    assert json.dumps([one.id for one in envelopes(app)]) == "[]"
