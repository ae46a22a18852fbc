"""Metrics, spans and versions of tasks."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid

import pytest
import redis
from prometheus_client import REGISTRY, CollectorRegistry
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.tasks import (
    RetryPolicy,
    SoftTimeLimitError,
    TaskApp,
    TaskCollector,
    TaskContext,
    TaskFailedError,
)
from conquiet.tasks.keys import WAITING
from tests.eventually import eventually
from tests.services import free_port
from tests.spans import Spans, trace_of
from tests.with_redis.tasks.conftest import QUICK, StartWorker
from tests.with_redis.tasks.test_limits import spin

PATIENCE_S = 600.0


def sample(name: str, task: str, queue: str = "default") -> float:
    return REGISTRY.get_sample_value(name, {"task": task, "queue": queue}) or 0.0


def test_each_outcome_is_counted_and_timed(app: TaskApp, start: StartWorker) -> None:
    @app.task(name=f"{app.namespace}.second", max_retries=1, retry=QUICK)
    def second(ctx: TaskContext) -> None:
        if ctx.attempt == 0:
            raise ValueError("not yet")

    @app.task(name=f"{app.namespace}.unique", unique_for_s=60)
    def unique() -> None: ...

    start()
    second.enqueue().result(PATIENCE_S)
    unique.enqueue()
    unique.enqueue().result(PATIENCE_S)

    eventually(lambda: sample("conquiet_tasks_succeeded_total", second.name) == 1)
    assert sample("conquiet_tasks_enqueued_total", second.name) == 1
    assert sample("conquiet_tasks_started_total", second.name) == 2
    assert sample("conquiet_tasks_retried_total", second.name) == 1
    assert sample("conquiet_tasks_deduplicated_total", unique.name) == 1
    for histogram in ("duration", "queue_wait", "end_to_end"):
        assert sample(f"conquiet_tasks_{histogram}_seconds_count", second.name) == 2


def test_tasks_that_were_revoked_or_have_expired_are_counted(app: TaskApp, start: StartWorker) -> None:
    @app.task(name=f"{app.namespace}.never")
    def never() -> None: ...

    revoked, expired = never.enqueue(), never.with_options(expires_s=0.001).enqueue()
    revoked.revoke()
    start()
    for handle in (revoked, expired):
        with pytest.raises(TaskFailedError):
            handle.result(PATIENCE_S)

    eventually(lambda: sample("conquiet_tasks_expired_total", never.name) == 1)
    eventually(lambda: sample("conquiet_tasks_revoked_total", never.name) == 1)
    assert sample("conquiet_tasks_started_total", never.name) == 0


def test_tasks_that_run_are_a_gauge(app: TaskApp, start: StartWorker) -> None:
    queues, may_end = [f"{app.namespace}-a", f"{app.namespace}-b"], threading.Event()

    @app.task
    def wait() -> None:
        may_end.wait(PATIENCE_S)

    def running() -> list[float | None]:
        return [REGISTRY.get_sample_value("conquiet_tasks_in_flight", {"queue": queue}) for queue in queues]

    worker = start(queues=tuple(queues), concurrency=3)
    eventually(lambda: running() == [0, 0])
    for queue in [*queues, queues[0]]:
        wait.with_options(queue=queue).enqueue()

    eventually(lambda: running() == [2, 1])
    may_end.set()
    eventually(lambda: running() == [0, 0])
    worker.stop()
    worker.join()
    assert running() == [0, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_soft_limit_is_counted_and_logged(
    app: TaskApp, start: StartWorker, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    name = f"{app.namespace}.slow"

    def slow() -> None:
        spin()

    async def slow_async() -> None:
        await asyncio.sleep(PATIENCE_S)

    options = {"soft_time_limit_s": 0.05, "max_retries": 1, "retry": QUICK}
    task = app.task(name=name, **options)(slow_async if is_async else slow)
    start()
    handle = task.enqueue()

    with caplog.at_level(logging.WARNING), pytest.raises(TaskFailedError, match=SoftTimeLimitError.__name__):
        handle.result(PATIENCE_S)

    eventually(lambda: sample("conquiet_tasks_failed_total", name) == 1)
    assert sample("conquiet_tasks_soft_limits_total", name) == 2
    for attempt in (0, 1):
        text = f"task {name} {handle.id} has reached its soft time limit of 0.05 s at attempt {attempt}"
        assert text in caplog.text


def test_counters_of_what_is_rare_begin_at_0(app: TaskApp, start: StartWorker) -> None:
    queue = f"{app.namespace}-queue"

    @app.task(name=f"{app.namespace}.never", queue=queue)
    def never() -> None: ...

    start(queues=(queue,))

    labels = {"task": never.name, "queue": queue}
    for name in ("succeeded", "failed", "retried", "soft_limits", "hard_limits"):
        assert REGISTRY.get_sample_value(f"conquiet_tasks_{name}_total", labels) == 0
    for name in ("signature_invalid", "malformed", "fenced", "taken_over"):
        assert REGISTRY.get_sample_value(f"conquiet_tasks_{name}_total", {"queue": queue}) == 0


def test_a_scrape_tells_where_the_tasks_of_each_queue_are(app: TaskApp, start: StartWorker) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    @app.task(queue="mail", max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    @app.task(queue="mail", retry=RetryPolicy(base_delay_ms=3_600_000, max_delay_ms=3_600_000))
    def later() -> None:
        raise ValueError("not yet")

    registry = CollectorRegistry(auto_describe=True)
    registry.register(TaskCollector(app.client, app.namespace))

    def figures(queue: str) -> dict[str, float | None]:
        names = ("depth", "reserved", "waiting", "delayed", "dead_letters", "consumers", "paused")
        return {
            name: registry.get_sample_value(f"conquiet_tasks_queue_{name}", {"queue": queue})
            for name in names
        }

    start(queues=("default", "mail"))
    with pytest.raises(TaskFailedError):
        fail.enqueue().result(PATIENCE_S)
    later.enqueue()
    eventually(lambda: figures("mail")["waiting"] == 1)
    wait.enqueue()
    assert begun.wait(PATIENCE_S)
    later.with_options(delay_s=3600).enqueue()
    fail.with_options(queue="unread").enqueue_many({} for _ in range(3))
    app.client.hset(app.keys("unread").meta, "paused", "1")

    assert registry.get_sample_value("conquiet_tasks_up") == 1
    assert figures("default") == {
        "depth": 0, "reserved": 1, "waiting": 0, "delayed": 0, "dead_letters": 0, "consumers": 1, "paused": 0
    }  # fmt: skip
    assert figures("mail") == {
        "depth": 0, "reserved": 0, "waiting": 1, "delayed": 1, "dead_letters": 1, "consumers": 1, "paused": 0
    }  # fmt: skip
    assert figures("unread") == {
        "depth": 3, "reserved": 0, "waiting": 0, "delayed": 0, "dead_letters": 0, "consumers": 0, "paused": 1
    }  # fmt: skip
    age = registry.get_sample_value("conquiet_tasks_queue_oldest_age_seconds", {"queue": "unread"})
    assert age is not None
    assert age >= 0
    may_end.set()


def test_a_queue_that_cannot_be_read_leaves_no_figure(app: TaskApp) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(TaskCollector(app.client, app.namespace))
    app.enqueue("any", queue="fine")
    assert registry.get_sample_value("conquiet_tasks_queue_depth", {"queue": "fine"}) == 1

    app.enqueue("any", queue="broken")
    app.client.set(app.keys("broken").dead_letters, "no stream")

    assert registry.get_sample_value("conquiet_tasks_up") == 0
    assert registry.get_sample_value("conquiet_tasks_queue_depth", {"queue": "fine"}) is None


def test_a_server_that_is_unavailable_is_a_scrape_that_says_so() -> None:
    registry = CollectorRegistry(auto_describe=True)
    client = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    registry.register(TaskCollector(client, f"tasks-{uuid.uuid4().hex[:10]}"))

    assert registry.get_sample_value("conquiet_tasks_up") == 0


def test_one_trace_leads_from_the_caller_to_the_function(
    app: TaskApp, start: StartWorker, spans: Spans
) -> None:
    @app.task
    def traced(ctx: TaskContext) -> str:
        return ctx.headers["traceparent"]

    start()
    carried = traced.enqueue().result(PATIENCE_S)

    eventually(lambda: spans.all("process"))
    assert trace_of(spans.one("send")) in carried
    assert trace_of(spans.one("process")) == trace_of(spans.one("send"))


def test_a_task_of_a_later_version_waits_for_a_worker_of_that_version(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def any_task() -> str:
        return "done"

    keys = app.keys("default")
    later = app.envelope(any_task.call()).fields()
    later["meta"] = {"schemaVersion": 3}
    any_task.enqueue()
    entry_id = app.client.xadd(keys.streams[5], {"data": json.dumps(later)})
    start()
    assert any_task.enqueue().result(PATIENCE_S) == "done"

    eventually(lambda: app.client.zcard(keys.waiting[5]) == 1)
    pending = app.client.xpending_range(keys.streams[5], "workers", "-", "+", 10)
    assert [(one["message_id"], one["consumer"], one["times_delivered"]) for one in pending] == [
        (entry_id, WAITING.encode(), 0)
    ]
    assert app.client.xlen(keys.dead_letters) == 0
