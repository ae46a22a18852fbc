"""What keeps a worker alive in the eyes of others, and what it may begin when it was late."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from conquiet.errors import QueueError
from conquiet.tasks import TaskApp, TaskContext, TaskHandle, Worker, WorkerConfig
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.worker.slot import RunningSlot, RunningTask
from tests.eventually import eventually
from tests.link import Link
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


class LongTask:
    """A task that runs until the test ends it, and who has begun it."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self.begun: list[str] = []
        self.has_begun, self._may_end = threading.Event(), threading.Event()

        @app.task(name="long", max_retries=9)
        def long(ctx: TaskContext) -> int:
            self.begun.append(ctx.worker)
            self.has_begun.set()
            self._may_end.wait(PATIENCE_S)
            return ctx.attempt

        self._task = long

    def enqueue(self) -> TaskHandle:
        """Enqueue it, and wait until it has begun."""
        handle = self._task.enqueue()
        assert self.has_begun.wait(PATIENCE_S)
        return handle

    def wait_for_beats(self, count: int) -> None:
        """Until its worker has renewed its heartbeat so often, or another one has begun it."""
        scores: set[float] = set()

        def is_seen() -> bool:
            score = self._app.client.zscore(self._app.keys("default").heartbeats, self.begun[0])
            scores.update([] if score is None else [score])
            return len(scores) > count or len(self.begun) > 1

        eventually(is_seen)

    def end(self) -> None:
        """Let it return."""
        self._may_end.set()


@pytest.fixture
def long(app: TaskApp) -> Iterator[LongTask]:
    task = LongTask(app)
    yield task
    task.end()


@contextmanager
def linked(app: TaskApp, server_url: str) -> Iterator[tuple[TaskApp, Link]]:
    """The same app and its tasks, over a network that can fail."""
    address = urlsplit(server_url)
    with Link(str(address.hostname), address.port or 6379) as link:
        url = f"redis://127.0.0.1:{link.port}{address.path}"
        with TaskApp(url, namespace=app.namespace) as far:
            far.tasks |= {name: task for name, task in app.tasks.items() if name not in far.tasks}
            yield far, link


def test_a_heartbeat_that_is_not_answered_is_made_again_before_its_lease_ends(
    app: TaskApp, start: StartWorker, long: LongTask, server_url: str
) -> None:
    config = WorkerConfig(concurrency=1, pool="thread", heartbeat_ttl_s=12.0)
    with linked(app, server_url) as (far, link), Worker(far, config):
        long.enqueue()
        start(heartbeat_ttl_s=12.0)

        link.forget()
        long.wait_for_beats(2)

        assert len(long.begun) == 1
        long.end()


def test_what_cannot_follow_in_one_queue_ends_no_heartbeat_in_another(
    app: TaskApp, start: StartWorker, long: LongTask
) -> None:
    broken = app.keys("a")
    app.client.set(broken.group("g"), "not a hash")
    member = {"group": "g", "queue": "a", "number": 0, "nextId": "n"}
    facts = {"at": 0, "canvas": {"id": "c", "then": [], "member": member}, "state": "succeeded", "result": 1}
    app.client.hset(broken.follow_ups, "t", json.dumps(facts))
    for _ in range(2):
        start(heartbeat_ttl_s=4.0, queues=("a", "default"))
    handle = long.enqueue()

    long.wait_for_beats(6)
    long.end()

    assert handle.result(PATIENCE_S) == 0
    assert len(long.begun) == 1
    assert app.client.hlen(broken.follow_ups) == 1


def test_a_worker_that_is_busy_with_what_a_dead_one_left_keeps_its_heartbeat(
    app: TaskApp, start: StartWorker, long: LongTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(FollowUps, "perform_left", lambda *_: is_over.wait(PATIENCE_S))
    start(heartbeat_ttl_s=4.0)
    handle = long.enqueue()
    monkeypatch.undo()
    # It takes over what has no heartbeat.
    start(heartbeat_ttl_s=4.0)

    long.wait_for_beats(6)
    long.end()
    is_over.set()

    assert handle.result(PATIENCE_S) == 0
    assert len(long.begun) == 1


def test_a_heartbeat_that_was_late_is_not_made_good_by_the_next_one(
    app: TaskApp, start: StartWorker, long: LongTask
) -> None:
    @app.task(max_retries=0)
    def name(ctx: TaskContext) -> tuple[str, int]:
        return ctx.worker, ctx.attempt

    worker = start(prefetch_multiplier=4, heartbeat_ttl_s=4.0)
    channel = eventually(lambda: worker._loops[0].channel)
    assert channel is not None
    handle = long.enqueue()
    others = [name.enqueue() for _ in range(3)]
    # As after a freeze of the process: another worker may have what this one has read.
    channel.lease_valid_until = 0.0
    long.wait_for_beats(3)
    long.end()
    handle.result(PATIENCE_S)

    results = [one.result(PATIENCE_S) for one in others]

    assert {attempt for _, attempt in results} == {0}
    assert long.begun[0] not in {worker for worker, _ in results}


def test_a_server_that_hangs_ends_a_worker_as_one_that_is_gone_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="conquiet")
    # Connections are made, and nobody reads what they bring.
    with socket.create_server(("127.0.0.1", 0)) as hung:
        url = f"redis://127.0.0.1:{hung.getsockname()[1]}/0?socket_timeout=1.1"
        with TaskApp(url) as app:
            worker = Worker(app, WorkerConfig(concurrency=1, pool="thread", max_outage_s=3.0))
            worker.start()
            eventually(lambda: not worker.is_running)

            with pytest.raises(QueueError):
                worker.join()

    for text in ("begins anew", "could not check the ends"):
        assert sum(text in line for line in caplog.messages) == 1


def test_a_heartbeat_that_fails_again_and_again_is_told_once_in_an_outage(
    app: TaskApp, server_url: str, long: LongTask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="conquiet")

    def levels() -> list[int]:
        return [one.levelno for one in caplog.records if "the heartbeat of worker" in one.getMessage()]

    config = WorkerConfig(concurrency=1, pool="thread", heartbeat_ttl_s=4.0)
    with linked(app, server_url) as (far, link), Worker(far, config):
        long.enqueue()
        link.cut()
        eventually(lambda: len(levels()) >= 3)
        failed = levels()
        link.mend()
        long.end()

    assert failed[:3] == [logging.WARNING, logging.DEBUG, logging.DEBUG]


def test_reserved_tasks_that_could_not_be_released_in_an_outage_are_run_after_it(
    app: TaskApp, server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    @app.task
    def quick() -> None: ...

    with linked(app, server_url) as (far, link):

        @far.task(name="block", max_retries=0)
        def block() -> None:
            # Before its worker has seen that it runs for long.
            link.cut()
            may_end.wait(PATIENCE_S)

        blocked = app.enqueue("block", max_retries=0)
        reserved = [quick.enqueue() for _ in range(3)]
        config = WorkerConfig(concurrency=1, pool="thread", prefetch_multiplier=4, heartbeat_ttl_s=3_600)
        with Worker(far, config):
            eventually(lambda: "could not settle or free" in caplog.text)
            link.mend()
            may_end.set()
            quick.enqueue().result(PATIENCE_S)
            blocked.result(PATIENCE_S)

            # They were enqueued before the last one.
            states = [status.state for handle in reserved if (status := handle.status())]
            assert states == ["succeeded"] * 3


def test_of_two_workers_with_one_name_one_ends_and_the_other_keeps_its_task(
    app: TaskApp, start: StartWorker, long: LongTask
) -> None:
    @app.task
    def quick() -> None: ...

    first = start(name="same")
    handle = long.enqueue()
    second = start(name="same")
    second.stop()
    second.join()
    start(name="third")
    quick.enqueue().result(PATIENCE_S)
    long.end()
    handle.result(PATIENCE_S)

    assert len(long.begun) == 1
    assert first.is_running


def test_what_follows_is_done_for_all_that_dead_workers_have_left(app: TaskApp) -> None:
    @app.task
    def quick() -> None: ...

    keys = app.keys("default")
    unreadable: Any = {f"bad-{number}": "no JSON" for number in range(2_000)}
    app.client.hset(keys.follow_ups, mapping=unreadable)
    left: Any = {f"good-{number}": _follow_up(keys, number) for number in range(20)}
    app.client.hset(keys.follow_ups, mapping=left)

    assert FollowUps(app).perform_left("default") == 20
    assert app.client.hlen(keys.follow_ups) == 2_000


def test_what_the_parent_reads_of_a_child_whose_slot_is_closed_is_nothing() -> None:
    slot, file = RunningSlot.create()
    file.close()
    slot.begin(RunningTask("consumer", "default", 5, "1-1", 1, 1, None))
    assert slot.running is not None

    slot.close()

    assert slot.running is None


def _follow_up(keys: QueueKeys, number: int) -> str:
    canvas: dict[str, Any] = {"id": f"c{number}", "then": [], "member": None}
    return json.dumps({"at": 0, "canvas": canvas, "state": "succeeded", "result": None, "error": ""})
