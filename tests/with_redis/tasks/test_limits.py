"""Time limits of threads and coroutines, hooks, middleware, and a quick end of a wait."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from conquiet.db import DbSession
from conquiet.queue import open_client
from conquiet.tasks import (
    HardLimitPoolError,
    Middleware,
    SoftTimeLimitError,
    TaskApp,
    TaskContext,
    TaskFailedError,
    Worker,
    WorkerConfig,
)
from conquiet.tasks.blocking_reader import BlockingReader
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


def spin() -> None:
    """Python's own steps for a long time: what a soft limit can interrupt in a thread."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_soft_limit_is_raised_inside_of_a_plain_function(
    app: TaskApp, start: StartWorker, pool: str
) -> None:
    @app.task(soft_time_limit_s=0.05)
    def clean_up() -> str:
        try:
            spin()
        except SoftTimeLimitError as error:
            return str(error)
        return "never"

    @app.task
    def quick() -> int:
        return sum(range(1000))

    start(pool=pool)

    assert "soft time limit of 0.05 s" in clean_up.enqueue().result(PATIENCE_S)
    assert [quick.enqueue().result(PATIENCE_S) for _ in range(3)] == [499500] * 3


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_soft_limit_cancels_a_coroutine(app: TaskApp, start: StartWorker, pool: str) -> None:
    cancelled: list[str] = []

    @app.task(soft_time_limit_s=0.05, max_retries=0)
    async def wait() -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append("cleaned up")
            raise

    start(pool=pool)

    with pytest.raises(TaskFailedError, match=r"SoftTimeLimitError: .* soft time limit of 0\.05 s"):
        wait.enqueue().result(PATIENCE_S)
    assert cancelled == ["cleaned up"]


def test_a_soft_limit_is_retried_like_other_errors_unless_the_policy_says_never(
    app: TaskApp, start: StartWorker
) -> None:
    from dataclasses import replace

    attempts: list[str] = []

    @app.task(soft_time_limit_s=0.05, max_retries=1, retry=QUICK)
    def again() -> None:
        attempts.append("again")
        spin()

    @app.task(soft_time_limit_s=0.05, max_retries=1, retry=replace(QUICK, never_on=(SoftTimeLimitError,)))
    def once() -> None:
        attempts.append("once")
        spin()

    start()
    for task in (again, once):
        with pytest.raises(TaskFailedError, match="SoftTimeLimitError"):
            task.enqueue().result(PATIENCE_S)

    assert attempts == ["again", "again", "once"]


def test_the_limit_of_a_call_wins_over_that_of_the_task(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=0)
    def endless() -> None:
        spin()

    start()

    with pytest.raises(TaskFailedError, match=r"limit of 0\.06 s"):
        endless.with_options(soft_time_limit_s=0.06).enqueue().result(PATIENCE_S)


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_task_with_a_hard_limit_is_refused_by_a_pool_that_cannot_kill(app: TaskApp, pool: Any) -> None:
    @app.task(name="render", hard_time_limit_s=5)
    def render() -> None: ...

    with pytest.raises(HardLimitPoolError, match=rf"task 'render' has a hard time limit of 5 s, .*'{pool}'"):
        Worker(app, WorkerConfig(pool=pool))


def test_a_hard_limit_in_a_queue_that_is_not_read_does_not_matter(app: TaskApp) -> None:
    @app.task(hard_time_limit_s=5, queue="films")
    def render() -> None: ...

    Worker(app, WorkerConfig(pool="thread", queues=("default",)))


def test_a_call_with_a_hard_limit_fails_visibly_in_a_pool_that_cannot_kill(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(max_retries=0)
    def render() -> None: ...

    start()

    with pytest.raises(TaskFailedError, match="use the pool 'process'"):
        render.with_options(hard_time_limit_s=5).enqueue().result(PATIENCE_S)


@pytest.mark.parametrize("pool", ["thread", "async"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), r"sys\.exit\(3\)"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (GeneratorExit(), "raised GeneratorExit"),
    ],
)
def test_a_task_that_exits_has_failed_and_the_worker_goes_on(
    app: TaskApp, start: StartWorker, pool: Any, error: BaseException, text: str
) -> None:
    @app.task(max_retries=0)
    def leave() -> None:
        raise error

    @app.task(max_retries=0)
    async def leave_later() -> None:
        await asyncio.sleep(0)
        raise error

    @app.task
    async def stay() -> str:
        return "here"

    start(pool=pool)

    for task in (leave, leave_later):
        with pytest.raises(TaskFailedError, match=text):
            task.enqueue().result(PATIENCE_S)
        assert stay.enqueue().result(PATIENCE_S) == "here"


def test_an_async_task_with_a_session_is_refused_when_it_is_declared(app: TaskApp) -> None:
    with pytest.raises(TypeError, match=r"'pay' is async and takes a DbSession"):

        @app.task(name="pay")
        async def pay(session: DbSession) -> None: ...


def test_hooks_are_called_around_all_tasks(app: TaskApp, start: StartWorker) -> None:
    calls: list[str] = []

    @app.on_startup
    def first() -> None:
        calls.append("up 1")

    @app.on_startup
    async def second() -> None:
        calls.append("up 2")

    app.on_shutdown(lambda: calls.append("down 1"))
    app.on_shutdown(lambda: calls.append("down 2"))

    @app.task
    def work() -> None:
        calls.append("task")

    worker = start()
    work.enqueue().result(PATIENCE_S)
    worker.stop()
    worker.join()

    assert calls == ["up 1", "up 2", "task", "down 2", "down 1"]


def test_a_worker_whose_start_up_hook_fails_runs_nothing(app: TaskApp) -> None:
    calls: list[str] = []

    @app.on_startup
    def connect() -> None:
        raise ConnectionError("no cache")

    app.on_shutdown(lambda: calls.append("down"))
    worker = Worker(app, WorkerConfig(pool="thread", concurrency=1))

    with pytest.raises(ConnectionError, match="no cache"):
        worker.start()

    assert calls == ["down"]
    assert not worker.is_running


class Noting(Middleware):
    """Notes what it is called with."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def before(self, ctx: TaskContext) -> None:
        self._notes.append(f"{self._name} before {ctx.name}")

    def after(self, ctx: TaskContext, result: Any) -> None:
        self._notes.append(f"{self._name} after {result}")

    def on_error(self, ctx: TaskContext, error: Exception) -> None:
        self._notes.append(f"{self._name} error {error}")


class Refusing(Middleware):
    """Fails before the task."""

    def before(self, ctx: TaskContext) -> None:
        raise PermissionError("not today")


def test_middleware_is_called_around_the_function_the_first_outermost(server_url: str, app: TaskApp) -> None:
    notes: list[str] = []
    middleware = [Noting("a", notes), Noting("b", notes)]
    with TaskApp(server_url, namespace=app.namespace, middleware=middleware) as own:

        @own.task(name="ok")
        def succeed() -> int:
            return 7

        @own.task(name="bad", max_retries=0)
        def fail() -> None:
            raise ValueError("broken")

        with Worker(own, WorkerConfig(pool="thread", concurrency=1)):
            succeed.enqueue().result(PATIENCE_S)
            with pytest.raises(TaskFailedError, match="broken"):
                fail.enqueue().result(PATIENCE_S)

    assert notes == [
        *("a before ok", "b before ok", "b after 7", "a after 7"),
        *("a before bad", "b before bad", "b error broken", "a error broken"),
    ]


def test_an_error_of_middleware_is_the_error_of_the_task(server_url: str, app: TaskApp) -> None:
    notes: list[str] = []
    middleware = [Noting("a", notes), Refusing(), Noting("c", notes)]
    with TaskApp(server_url, namespace=app.namespace, middleware=middleware) as own:

        @own.task(name="refused", max_retries=0)
        def refused() -> None:
            notes.append("ran")

        with (
            Worker(own, WorkerConfig(pool="thread", concurrency=1)),
            pytest.raises(TaskFailedError, match="PermissionError: not today"),
        ):
            refused.enqueue().result(PATIENCE_S)

    assert notes == ["a before refused", "a error not today"]


def test_a_wait_for_new_tasks_ends_when_another_thread_wakes_it(app: TaskApp, server_url: str) -> None:
    @app.task
    def any_task() -> None: ...

    any_task.enqueue()
    keys = app.keys("default")
    app.client.xgroup_setid(keys.streams[5], "workers", "$")
    with open_client(server_url, block_ms=round(PATIENCE_S * 1000)) as client:
        reader = BlockingReader(client, "one")
        found: list[Any] = []
        thread = threading.Thread(
            target=lambda: found.append(list(reader.read([keys.streams[5]], round(PATIENCE_S * 1000))))
        )
        thread.start()
        eventually(lambda: app.client.info("clients")["blocked_clients"])

        reader.wake()
        thread.join()

    assert found == [[]]
    assert list(reader.read([keys.streams[5]], round(PATIENCE_S * 1000))) == []
