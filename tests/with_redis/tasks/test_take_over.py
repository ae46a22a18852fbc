"""Tasks of workers that die, stop or run for long."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from conquiet.tasks import TaskApp, TaskContext, TaskFailedError, WorkerConfig, scripts
from conquiet.tasks.keys import GROUP
from conquiet.tasks.worker.dead_workers import DeadWorkers
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


def read_as_a_worker_that_dies(app: TaskApp, count: int, *, alive_ms: int) -> list[str]:
    """Read tasks under a name whose heartbeat will end."""
    keys = app.keys("default")
    scripts.heartbeat(app.client, keys, ["dead"], alive_ms)
    read = scripts.settle_and_read(app.client, keys, "dead", (), count=count, max_bytes=1 << 20)
    return [entry.entry_id for entry in read.entries]


def test_what_a_dead_worker_had_read_is_run_by_another(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=0)
    def attempt(ctx: TaskContext) -> int:
        return ctx.attempt

    handles = [attempt.enqueue() for _ in range(150)]
    read_as_a_worker_that_dies(app, 150, alive_ms=1)
    start()

    assert {handle.result(PATIENCE_S) for handle in handles} == {1}
    consumers = app.client.xinfo_consumers(app.keys("default").streams[5], GROUP)
    assert b"dead" not in {consumer["name"] for consumer in consumers}


def test_a_task_longer_than_the_heartbeat_is_run_once(app: TaskApp, start: StartWorker) -> None:
    begun: list[str] = []
    may_end = threading.Event()

    @app.task
    def long(ctx: TaskContext) -> None:
        begun.append(ctx.id)
        may_end.wait(PATIENCE_S)

    for _ in range(2):
        start(heartbeat_ttl_s=6.0)
    handle = long.enqueue()
    key = app.keys("default").heartbeats
    beats: set[Any] = set()

    def has_renewed_often() -> bool:
        beats.update(app.client.zrange(key, 0, -1, withscores=True))
        # Two workers, each of them twice as often as its lease needs.
        return len(beats) >= 8

    eventually(has_renewed_often)
    may_end.set()
    handle.result(PATIENCE_S)

    assert begun == [handle.id]


def test_a_worker_that_lost_its_task_settles_nothing(app: TaskApp) -> None:
    @app.task
    def any_task() -> None: ...

    handle = any_task.enqueue()
    [entry_id] = read_as_a_worker_that_dies(app, 1, alive_ms=1)
    keys = app.keys("default")
    eventually(lambda: scripts.take_over(app.client, keys))

    change = scripts.Change("ack", 5, entry_id, 1, task_id=handle.id, record=("state", "succeeded"))
    read = scripts.settle_and_read(app.client, keys, "dead", [change], count=0, max_bytes=1)

    assert read.refused == [0]
    status = handle.status()
    assert status is not None
    assert status.state == "queued"
    assert app.client.xlen(keys.streams[5]) == 1


def test_what_a_worker_could_not_settle_is_not_told_as_ended(app: TaskApp) -> None:
    @app.task
    def nothing() -> None:
        pass

    keys = app.keys("default")
    handles = [nothing.enqueue() for _ in range(2)]
    mine = scripts.settle_and_read(app.client, keys, "me", (), count=1, max_bytes=1 << 20).entries
    theirs = scripts.settle_and_read(app.client, keys, "other", (), count=1, max_bytes=1 << 20).entries
    changes = [
        scripts.Change("ack", one.priority, one.entry_id, one.delivery_count, task_id=handle.id)
        for one, handle in zip([*mine, *theirs], handles, strict=True)
    ]

    def settle(some: list[scripts.Change]) -> None:
        told = json.dumps([[change.task_id, nothing.name, "succeeded"] for change in some])
        scripts.settle_and_read(app.client, keys, "me", some, count=0, max_bytes=1, event=told)

    settle(changes[1:])
    assert app.control.tasks("default", "ended").tasks == []
    settle(changes)
    assert [task.id for task in app.control.tasks("default", "ended").tasks] == [handles[0].id]


def test_a_task_whose_worker_dies_each_time_is_a_dead_letter(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=1)
    def poison() -> None:
        raise AssertionError("must not run any more")

    handle = poison.enqueue()
    keys = app.keys("default")
    for _ in range(3):
        [entry] = scripts.settle_and_read(app.client, keys, "dead", (), count=1, max_bytes=1 << 20).entries
        if entry.has_waited:
            begin = scripts.Change("begin", 5, entry.entry_id, entry.delivery_count)
            scripts.settle_and_read(app.client, keys, "dead", [begin], count=0, max_bytes=1)
        scripts.take_over(app.client, keys, dead=["dead"])
    start()

    with pytest.raises(TaskFailedError, match="its worker died each time"):
        handle.result(PATIENCE_S)


def test_a_worker_that_stops_hands_back_what_it_has_not_begun(app: TaskApp, start: StartWorker) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task(max_retries=0)
    def wait(ctx: TaskContext) -> int:
        begun.set()
        may_end.wait(PATIENCE_S)
        return ctx.attempt

    handles = [wait.enqueue() for _ in range(4)]
    first = start(prefetch_multiplier=4)
    assert begun.wait(PATIENCE_S)
    first.stop()
    may_end.set()
    first.join()
    start()

    assert [handle.result(PATIENCE_S) for handle in handles] == [0, 0, 0, 0]


def test_what_a_busy_worker_has_reserved_is_run_by_an_idle_one(app: TaskApp, start: StartWorker) -> None:
    may_end = threading.Event()

    @app.task
    def block() -> None:
        may_end.wait(PATIENCE_S)

    @app.task
    def quick() -> None: ...

    blocked = block.enqueue()
    others = [quick.enqueue() for _ in range(5)]
    # It reads all of them at once, and blocks at the first.
    start(prefetch_multiplier=1)
    eventually(lambda: (status := blocked.status()) is not None and status.state == "running")
    start(prefetch_multiplier=1)
    for handle in others:
        handle.result(PATIENCE_S)

    may_end.set()
    blocked.result(PATIENCE_S)


def test_what_ended_before_a_long_task_is_settled_while_that_runs(app: TaskApp, start: StartWorker) -> None:
    may_end = threading.Event()

    @app.task
    def quick() -> None: ...

    @app.task
    def block() -> None:
        may_end.wait(PATIENCE_S)

    # Read at once, by one thread.
    first, blocked = quick.enqueue(), block.enqueue()
    start()
    first.result(PATIENCE_S)

    status = blocked.status()
    assert status is not None
    assert not status.state.is_final
    may_end.set()
    blocked.result(PATIENCE_S)


def test_a_task_with_a_visibility_timeout_is_taken_over_after_it(app: TaskApp) -> None:
    @app.task(visibility_timeout_s=3_600)
    def rare() -> None: ...

    rare.enqueue()
    read_as_a_worker_that_dies(app, 1, alive_ms=1)
    keys = app.keys("default")
    eventually(lambda: scripts.take_over(app.client, keys))

    read = scripts.settle_and_read(app.client, keys, "other", (), count=1, max_bytes=1 << 20)
    assert read.entries == []
    assert read.next_due_ms is not None
    assert 3_500_000 < read.next_due_ms <= 3_600_000


@pytest.mark.parametrize("ttl_s", [0.1, 1.0, 4.0, 15.0, 600.0])
def test_the_last_heartbeat_and_the_next_look_are_within_the_ttl(app: TaskApp, ttl_s: float) -> None:
    config = WorkerConfig(heartbeat_ttl_s=ttl_s)
    looks = DeadWorkers(app, config, ())

    next_look_s = looks.round(threading.Event())
    looks.close()

    assert config.lease_ms / 1000 + next_look_s <= ttl_s


def test_a_worker_that_waits_for_new_tasks_is_woken_for_what_it_takes_over(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def note() -> None: ...

    # Read before the worker looks; the worker's first look is over when it waits.
    handle = note.enqueue()
    read_as_a_worker_that_dies(app, 1, alive_ms=3_600_000)
    worker = start(heartbeat_ttl_s=PATIENCE_S)
    note.enqueue().result(PATIENCE_S)
    looks = DeadWorkers(app, WorkerConfig(heartbeat_ttl_s=PATIENCE_S), worker._loops)
    scripts.heartbeat(app.client, app.keys("default"), ["dead"], 1)
    # Until its heartbeat has ended by the server's clock.
    keys = app.keys("default")
    eventually(
        lambda: int(app.client.time()[0]) * 1000 > int(app.client.zscore(keys.heartbeats, "dead") or 0)
    )
    before = unblocked(app)
    looks.round(threading.Event())
    looks.close()

    assert handle.result(PATIENCE_S) is None
    assert unblocked(app) > before


def unblocked(app: TaskApp) -> int:
    """How often a client has asked the server to end the wait of another one."""
    stats: Any = app.client.info("commandstats")
    # Redis 6.2 has one count for all of CLIENT.
    names = ("cmdstat_client|unblock", "cmdstat_client")
    return sum(stats[name]["calls"] for name in names if name in stats)
