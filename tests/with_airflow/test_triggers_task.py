"""The trigger of a task: it waits, tells of states, outlives the server, and revokes when it is killed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_conquiet.triggers.task import TaskTrigger
from conquiet import EmbeddedServer
from conquiet.tasks import TaskApp, TaskContext, Worker, WorkerConfig
from tests.eventually import HANG_S, eventually
from tests.with_airflow.standalone import connection_to

NAMESPACE = f"tasks-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def app(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskApp]:
    """An app whose server is Airflow's default connection."""
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(valkey_url))
    with TaskApp(valkey_url, namespace=NAMESPACE) as opened:
        yield opened


def trigger_of(task_id: str) -> TaskTrigger:
    return TaskTrigger(conquiet_task_id=task_id, task_queue="default", namespace=NAMESPACE)


async def events_of(trigger: TaskTrigger) -> list[dict[str, Any]]:
    return [event.payload async for event in trigger.run()]


def worker(app: TaskApp) -> Worker:
    return Worker(app, WorkerConfig(pool="thread", concurrency=1, heartbeat_ttl_s=60.0))


def test_it_rings_once_without_a_result_and_tells_of_progress(app: TaskApp, caplog):
    @app.task(name="shop.slow")
    def slow(ctx: TaskContext) -> str:
        ctx.progress(0.4, "halfway to lunch")
        eventually(lambda: "40%: halfway to lunch" in caplog.text, every_s=0.1)
        return "secret"

    handle = app.enqueue("shop.slow")
    with worker(app), caplog.at_level("INFO"):
        events = asyncio.run(asyncio.wait_for(events_of(trigger_of(handle.id)), HANG_S))

    assert events == [{"id": handle.id, "task_queue": "default", "state": "succeeded"}]
    assert "is running on worker " in caplog.text
    assert "secret" not in caplog.text


def test_it_goes_on_when_redis_was_unavailable_and_logs_it(tmp_path, monkeypatch, caplog):
    server = EmbeddedServer(dir=tmp_path, appendonly=True)
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(server.url))
    app = TaskApp(server.url, namespace=NAMESPACE)
    app.task(name="shop.quick")(lambda: 1)
    handle = app.enqueue("shop.quick")

    async def scenario() -> list[dict[str, Any]]:
        waiting = asyncio.create_task(events_of(trigger_of(handle.id)))
        while "is queued" not in caplog.text:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(server.kill)
        while "trying again" not in caplog.text:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(server.start)
        with app, worker(app):
            return await asyncio.wait_for(waiting, HANG_S)

    try:
        with caplog.at_level("INFO"):
            events = asyncio.run(scenario())
    finally:
        server.stop()

    assert [event["state"] for event in events] == ["succeeded"]


def test_one_that_is_cancelled_ends_and_closes_its_client(app, valkey):
    handle = app.enqueue("shop.unknown", queue="default")
    connections = lambda: int(valkey.info("clients")["connected_clients"])  # noqa: E731
    before = connections()

    async def cancel_after(steps: int) -> None:
        waiting = asyncio.create_task(events_of(trigger_of(handle.id)))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(waiting, HANG_S)

    async def scenario() -> None:
        for steps in range(0, 60, 3):
            await cancel_after(steps)

    asyncio.run(scenario())

    eventually(lambda: connections() <= before)


def test_a_task_without_a_record_is_told_of(app):
    [event] = asyncio.run(asyncio.wait_for(events_of(trigger_of("1-1")), HANG_S))

    assert event["state"] == "unknown"


def test_a_kill_revokes_the_task(app, caplog):
    handle = app.enqueue("shop.bill")

    with caplog.at_level("INFO"):
        asyncio.run(trigger_of(handle.id).on_kill())

    assert handle.status().state == "revoked"
    assert "is revoked, as its Airflow task was stopped" in caplog.text


def test_it_is_made_again_from_what_it_serializes_to():
    path, arguments = trigger_of("1-2").serialize()

    assert path == "airflow_provider_conquiet.triggers.task.TaskTrigger"
    assert TaskTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)
