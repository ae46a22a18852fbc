"""Streams of a queue that somebody deletes by hand, as to empty it: the queue goes on."""

from __future__ import annotations

import threading

from conquiet.tasks import Task, TaskApp
from conquiet.tasks.keys import GROUP
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


def declare_add(app: TaskApp) -> Task[..., int]:
    @app.task
    def add(a: int) -> int:
        return a + 1

    return add


def test_a_worker_goes_on_with_what_is_enqueued_afterwards(app: TaskApp, start: StartWorker) -> None:
    add = declare_add(app)
    start()
    assert add.enqueue(1).result(PATIENCE_S) == 2

    app.client.delete(app.keys("default").streams[5])

    assert add.enqueue(2).result(PATIENCE_S) == 3


def test_a_worker_that_starts_afterwards_reads_what_was_enqueued(app: TaskApp, start: StartWorker) -> None:
    add = declare_add(app)
    add.enqueue(1)
    app.client.delete(app.keys("default").streams[5])
    handle = add.enqueue(2)

    start()

    assert handle.result(PATIENCE_S) == 3


def test_what_runs_meanwhile_and_what_waits_does_not_stop_the_worker(
    app: TaskApp, start: StartWorker
) -> None:
    add, begun, may_end = declare_add(app), threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    start()
    wait.enqueue()
    assert begun.wait(PATIENCE_S)
    keys = app.keys("default")
    # Reserved behind it, and given back to others while it runs for long.
    for number in range(3):
        add.enqueue(number)
    app.client.delete(keys.streams[5])
    app.client.zadd(keys.waiting[5], {"1-1": 0})
    handle = add.enqueue(10)
    may_end.set()

    assert handle.result(PATIENCE_S) == 11
    eventually(lambda: app.client.zcard(keys.waiting[5]) == 0)
    assert [group["name"] for group in app.client.xinfo_groups(keys.streams[5])] == [GROUP.encode()]
