"""TaskApp.events: what happens to tasks in all processes, for those who listen."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from conquiet import EmbeddedServer, QueueError
from conquiet.tasks import (
    RetryPolicy,
    TaskApp,
    TaskContext,
    TaskEvent,
    TaskFailedError,
    Worker,
    WorkerConfig,
    chord,
    scripts,
)
from conquiet.tasks.keys import FEED_LENGTH
from tests.eventually import HANG_S
from tests.with_redis.tasks.conftest import QUICK, StartWorker
from tests.with_redis.tasks.test_limits import spin

PATIENCE_S = 600.0


def until_end(events: Iterable[TaskEvent], task_id: str, end: str = "succeeded") -> list[TaskEvent]:
    """The events of one task up to its end."""
    found = []
    for event in events:
        if event.id == task_id:
            found.append(event)
            if event.kind == end:
                return found
    raise AssertionError(found)


def kinds(events: Iterable[TaskEvent]) -> list[str]:
    return [event.kind for event in events]


def test_s11_changes_that_other_processes_make_are_seen(app: TaskApp, server_url: str) -> None:
    program = f"""
from conquiet.tasks import TaskApp, Worker, WorkerConfig
app = TaskApp({server_url!r}, namespace={app.namespace!r})

@app.task(name="fine")
def fine() -> int:
    return 1

with Worker(app, WorkerConfig(pool="thread", concurrency=1)):
    fine.enqueue().result({HANG_S})
"""
    with app.events(["default"], idle_s=HANG_S) as events:
        subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S)
        first = next(events)
        found = [first, *until_end(events, first.id)]

    assert kinds(found) == ["queued", "running", "succeeded"]
    assert {event.name for event in found} == {"fine"}
    assert {event.queue for event in found} == {"default"}


def test_each_step_is_told_once_with_its_time_worker_and_attempt(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def fail() -> None:
        raise ValueError("no")

    start(name="one")
    with app.events(idle_s=HANG_S) as events:
        handle = fail.enqueue()
        found = until_end(events, handle.id, "dead_lettered")

    status = handle.status()
    assert status is not None
    assert kinds(found) == ["queued", "running", "retried", "running", "failed", "dead_lettered"]
    assert [(step.state, step.at, step.facts) for step in status.history] == [
        (event.kind, event.at, event.facts) for event in found
    ]
    assert found[2].facts["error"] == "ValueError: no"
    assert [event.facts.get("attempt") for event in found] == [None, 0, 0, 1, 1, 1]
    assert all(event.facts["worker"].startswith("one.") for event in found[1:])


def test_the_begin_of_a_long_task_its_progress_and_its_soft_limit_are_told_while_it_runs(
    app: TaskApp, start: StartWorker
) -> None:
    may_end = threading.Event()

    @app.task
    def long(ctx: TaskContext) -> None:
        ctx.progress(0.5, "half")
        may_end.wait(PATIENCE_S)

    @app.task(soft_time_limit_s=0.05, max_retries=0)
    def slow() -> None:
        spin()

    @app.task(soft_time_limit_s=0.05, max_retries=0)
    async def slow_async() -> None:
        await asyncio.sleep(PATIENCE_S)

    start()
    with app.events(idle_s=HANG_S) as events:
        handle = long.enqueue()
        before = {event.kind: event for event in (next(events) for _ in range(3))}
        may_end.set()
        after = until_end(events, handle.id)
        limits = [until_end(events, task.enqueue().id, "dead_lettered") for task in (slow, slow_async)]

    assert before.keys() == {"queued", "progress", "running"}
    facts = before["progress"].facts
    assert (facts["fraction"], facts["text"], facts["attempt"]) == (0.5, "half", 0)
    assert kinds(after) == ["succeeded"]
    for found in limits:
        assert [kind for kind in kinds(found) if kind != "running"] == [
            *("queued", "soft_limit", "failed", "dead_lettered")
        ]
        [reached] = [event for event in found if event.kind == "soft_limit"]
        assert (reached.facts["limit_s"], reached.facts["attempt"]) == (0.05, 0)


def test_revoked_expired_and_retried_dead_letters_are_told(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    with app.events(idle_s=HANG_S) as events:
        queued, delayed = fail.enqueue(), fail.with_options(delay_s=3600).enqueue()
        expired = fail.with_options(expires_s=0.001).enqueue()
        for handle in (queued, delayed):
            handle.revoke()
        start()
        failed = fail.enqueue()
        with pytest.raises(TaskFailedError):
            failed.result(PATIENCE_S)
        again = app.control.retry(failed.id, queue="default")
        found: dict[str, list[str]] = {}
        for event in events:
            found.setdefault(event.id, []).append(event.kind)
            if found.get(again, [""])[-1] == "dead_lettered":
                break

    assert found[queued.id] == ["queued", "revoked"]
    assert found[delayed.id] == ["queued", "revoked"]
    assert found[expired.id] == ["queued", "expired"]
    assert found[failed.id] == found[again] == ["queued", "running", "failed", "dead_lettered"]


def test_tasks_of_a_canvas_and_tasks_without_a_record_are_told(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def one(number: int) -> int:
        return number

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    start()
    with app.events(idle_s=HANG_S) as events:
        good = chord([one.call(1), one.call(2)], total.partial()).enqueue()
        assert kinds(until_end(events, good.id)) == ["queued", "running", "succeeded"]
        bad = chord([one.call(1), fail.call()], total.partial()).enqueue()
        [dead] = until_end(events, bad.id, "dead_lettered")
        assert "ValueError" in dead.facts["error"]
        ignored = one.with_options(ignore_result=True).enqueue(3)
        found = until_end(events, ignored.id)

    assert kinds(found) == ["queued", "succeeded"]
    assert (found[1].name, found[1].facts["attempt"]) == (one.name, 0)


def test_a_queue_that_is_used_later_is_listened_to(app: TaskApp) -> None:
    with app.events(idle_s=HANG_S) as events:
        app.enqueue("any", queue="used-later")
        # Until the listener knows the queue, its events are not written.
        while True:
            handle = app.enqueue("any", queue="used-later")
            events._fill(0.01)
            if events._read:
                break

        assert next(events).queue == "used-later"
        assert handle.queue == "used-later"


def test_nothing_is_written_while_nobody_listens_and_nothing_is_left_behind(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def fine() -> None: ...

    keys = app.keys("default")
    start()
    fine.enqueue().result(PATIENCE_S)
    assert app.client.exists(keys.feed) == 0

    with app.events(["default"], idle_s=HANG_S) as events:
        until_end(events, fine.enqueue().id)
    assert 0 < app.client.pttl(keys.feed) <= 60_000

    # As when the announcement has expired.
    app.client.delete(keys.feed)
    app.client.hset(keys.meta, "listened", 1)
    fine.enqueue().result(PATIENCE_S)
    assert app.client.exists(keys.feed) == 0


def test_two_listeners_see_the_same(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def fine() -> None: ...

    start()
    with app.events(idle_s=HANG_S) as first, app.events(idle_s=HANG_S) as second:
        handle = fine.enqueue()

        assert until_end(first, handle.id) == until_end(second, handle.id)


def test_a_listener_ends_when_it_is_idle_or_closed(app: TaskApp) -> None:
    assert list(app.events(idle_s=0.01)) == []

    events = app.events()
    ended = threading.Thread(target=lambda: list(events))
    ended.start()
    events.close()
    ended.join(HANG_S)

    assert not ended.is_alive()


def test_a_listener_on_an_event_loop_sees_the_same(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def fine() -> None: ...

    async def listen() -> list[str]:
        found = []
        async with app.events_async(idle_s=HANG_S) as events:
            handle = await fine.enqueue_async()
            async for event in events:
                if event.id == handle.id:
                    found.append(event.kind)
                if event.kind == "succeeded":
                    break
            assert [event async for event in app.events_async(["quiet"], idle_s=0.01)] == []
        await app.async_client.aclose()
        return found

    start()

    assert asyncio.run(listen()) == ["queued", "running", "succeeded"]


def test_the_memory_of_a_feed_is_bounded_and_a_listener_that_is_too_slow_says_so(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    number = FEED_LENGTH + 2_000
    with app.events(["default"], idle_s=0.5) as events, caplog.at_level(logging.WARNING):
        app.send_many(app.call("any", {}) for _ in range(number))
        assert FEED_LENGTH <= app.client.xlen(app.keys("default").feed) < FEED_LENGTH + 200
        found = list(events)

    assert FEED_LENGTH <= len(found) < number
    assert "events of queue 'default' come faster than they are read: some are lost" in caplog.text


def test_a_listener_in_time_reports_no_loss(app: TaskApp, caplog: pytest.LogCaptureFixture) -> None:
    with app.events(["default"], idle_s=0.5) as events, caplog.at_level(logging.WARNING):
        for _ in range(3):
            app.send_many(app.call("any", {}) for _ in range(FEED_LENGTH // 2))
            assert len(list(events)) == FEED_LENGTH // 2

    assert "some are lost" not in caplog.text


def test_what_is_no_event_is_passed_over(app: TaskApp) -> None:
    feed = app.keys("default").feed
    with app.events(["default"], idle_s=HANG_S) as events:
        for data in ("no json", "[]", "7", json.dumps(["a", "b", "queued", "no time", {}])):
            app.client.xadd(feed, {"data": data})
        app.client.xadd(feed, {"other": "field"})
        handle = app.enqueue("any")

        assert next(events).id == handle.id


def test_the_settlement_of_a_replaced_worker_is_not_told(app: TaskApp) -> None:
    @app.task
    def fine() -> None: ...

    handle = fine.enqueue()
    keys = app.keys("default")
    with app.events(["default"], idle_s=0.2) as events:
        [taken] = scripts.settle_and_read(app.client, keys, "first", (), count=1, max_bytes=1).entries
        scripts.take_over(app.client, keys, dead=["first"])
        record = ["state", "succeeded", "at:1:succeeded", "{}"]
        change = scripts.Change(
            "ack", 5, taken.entry_id, 1, task_id=handle.id, record_ttl_ms=1000, record=record
        )
        event = json.dumps([[handle.id, fine.name, "succeeded"]])
        reply = scripts.settle_and_read(
            app.client, keys, "first", [change], count=0, max_bytes=1, event=event
        )

        assert list(reply.refused) == [0]
        assert list(events) == []


def test_a_listener_goes_on_after_an_error_of_the_server(app: TaskApp) -> None:
    feed = app.keys("default").feed
    with app.events(["default"], idle_s=HANG_S) as events:
        app.client.set(feed, "no stream")
        with pytest.raises(QueueError):
            next(events)
        app.client.delete(feed)
        handle = app.enqueue("any")

        assert next(events).id == handle.id


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_events_of_queues_on_every_node_of_a_cluster_are_seen(kind: str) -> None:
    queues = ("a", "b", "c", "d")
    with EmbeddedServer(cluster=3) as server, TaskApp(server.url) as app:

        @app.task(retry=RetryPolicy(base_delay_ms=1, max_delay_ms=1))
        def second(ctx: TaskContext) -> None:
            if ctx.attempt == 0:
                raise ValueError("not yet")

        def enqueued() -> set[str]:
            return {second.with_options(queue=queue).enqueue().id for queue in queues}

        def is_complete(found: dict[str, list[str]], ids: set[str]) -> bool:
            return all(found.get(one, [""])[-1] == "succeeded" for one in ids)

        async def listen() -> Any:
            found: dict[str, list[str]] = {}
            async with app.events_async(queues, idle_s=HANG_S) as events:
                ids = await asyncio.to_thread(enqueued)
                async for event in events:
                    found.setdefault(event.id, []).append(event.kind)
                    if is_complete(found, ids):
                        break
            await app.async_client.aclose()
            return found

        found: dict[str, list[str]] = {}
        with Worker(app, WorkerConfig(pool="thread", concurrency=1, queues=queues)):
            if kind == "async":
                found = asyncio.run(listen())
            else:
                with app.events(queues, idle_s=HANG_S) as events:
                    ids = enqueued()
                    for event in events:
                        found.setdefault(event.id, []).append(event.kind)
                        if is_complete(found, ids):
                            break

    assert list(found.values()) == [["queued", "running", "retried", "running", "succeeded"]] * len(queues)
