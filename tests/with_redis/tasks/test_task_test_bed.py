"""TaskTestBed: the worker of production in the process of a test, with a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from conquiet import EmbeddedServer
from conquiet.db import DbSession
from conquiet.tasks import RetryPolicy, TaskApp, TaskContext, TaskFailedError, chain, chord, clock
from conquiet.testing import TaskTestBed
from tests.with_redis.tasks.test_limits import spin

HOURLY = RetryPolicy(backoff="fixed", base_delay_ms=3_600_000, max_delay_ms=3_600_000)


@pytest.fixture
def app(engine: Engine) -> Iterator[TaskApp]:
    with TaskApp("redis://127.0.0.1:1/0", database=engine) as opened:
        yield opened


@pytest.fixture
def bed(app: TaskApp) -> Iterator[TaskTestBed]:
    with TaskTestBed(app) as opened:
        yield opened


def test_nothing_runs_before_it_is_told_and_all_of_it_then(app: TaskApp, bed: TaskTestBed) -> None:
    ran: list[int] = []

    @app.task
    def note(number: int) -> None:
        ran.append(number)

    handles = note.enqueue_many({"number": number} for number in range(20))
    assert ran == []

    bed.run_until_idle()

    assert ran == list(range(20))
    assert {handle.status().state for handle in handles} == {"succeeded"}  # type: ignore[union-attr]


def test_delayed_tasks_run_when_the_clock_has_come_to_their_time(app: TaskApp, bed: TaskTestBed) -> None:
    ran: list[str] = []

    @app.task
    def note(name: str) -> None:
        ran.append(name)

    note.with_options(delay_s=3600).enqueue("delay")
    note.with_options(eta=bed.now + timedelta(hours=2)).enqueue("eta")
    bed.move_clock(minutes=59, seconds=59, milliseconds=999)
    bed.run_until_idle()
    assert ran == []

    bed.move_clock(milliseconds=1)
    bed.run_until_idle()
    assert ran == ["delay"]

    bed.move_clock(hours=1)
    bed.run_until_idle()
    assert ran == ["delay", "eta"]


def test_retries_wait_for_their_backoff(app: TaskApp, bed: TaskTestBed) -> None:
    attempts: list[int] = []

    @app.task(max_retries=2, retry=HOURLY)
    def fail(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("no")

    handle = fail.enqueue()
    for number in range(1, 4):
        bed.run_until_idle()
        bed.run_until_idle()
        assert attempts == list(range(number))
        bed.move_clock(hours=1)

    with pytest.raises(TaskFailedError, match="ValueError: no"):
        handle.result()
    status = handle.status()
    assert status is not None
    assert [step.state for step in status.history] == [
        *("queued", "running", "retried", "running", "retried", "running", "failed", "dead_lettered")
    ]
    gaps = [status.history[index + 1].at - status.history[index].at for index in (2, 4)]
    assert gaps == [timedelta(hours=1)] * 2


def test_tasks_expire_by_the_moved_clock(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task(expires_s=60)
    def quick() -> str:
        return "in time"

    first = quick.enqueue()
    bed.move_clock(seconds=59)
    bed.run_until_idle()
    second = quick.enqueue()
    bed.move_clock(seconds=60)
    bed.run_until_idle()

    assert first.result() == "in time"
    with pytest.raises(TaskFailedError, match="expired"):
        second.result()


def test_rates_are_kept_exactly_by_a_clock_that_stands_still(app: TaskApp, bed: TaskTestBed) -> None:
    ran: list[int] = []

    @app.task(rate_limit="3/m")
    def note(number: int) -> None:
        ran.append(number)

    note.enqueue_many({"number": number} for number in range(8))
    bed.run_until_idle()
    assert len(ran) == 3

    bed.move_clock(seconds=20)
    bed.run_until_idle()
    assert len(ran) == 4

    bed.move_clock(seconds=40)
    bed.run_until_idle()
    assert len(ran) == 6

    bed.move_clock(hours=1)
    bed.run_until_idle()
    assert sorted(ran) == list(range(8))


def test_unique_keys_and_results_expire_by_the_moved_clock(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task(unique_for_s=600, result_ttl_s=3600)
    def once() -> int:
        return 1

    first = once.enqueue()
    bed.run_until_idle()
    bed.move_clock(seconds=599)
    assert not once.enqueue().is_new
    bed.move_clock(seconds=1)
    assert once.enqueue().is_new
    assert first.result() == 1

    bed.move_clock(hours=1)
    assert first.status() is None


def test_what_tasks_enqueue_runs_too_in_queues_that_are_new(app: TaskApp, bed: TaskTestBed) -> None:
    ran: list[str] = []

    @app.task
    def first() -> None:
        ran.append("first")
        app.enqueue("second", queue="new")

    @app.task(name="second")
    def second() -> None:
        ran.append("second")

    first.enqueue()
    bed.run_until_idle()

    assert ran == ["first", "second"]


def test_canvases_run_to_their_end(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task
    def one(number: int) -> int:
        return number + 1

    @app.task(queue="totals")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    canvas = chain(chord([one.call(n) for n in range(50)], total.partial()), one.partial()).enqueue()
    bed.run_until_idle()

    assert canvas.result(0.001) == sum(range(1, 51)) + 1


def test_effects_and_results_of_tasks_with_a_session_are_there(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task
    def answer(session: DbSession) -> int:
        return int(session.execute(text("SELECT 42")).scalar_one())

    handle = answer.enqueue()
    bed.run_until_idle()

    assert handle.result() == 42


def test_a_paused_queue_is_idle(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task
    def note() -> None: ...

    app.control.pause("default")
    handle = note.enqueue()
    bed.run_until_idle()
    assert handle.status().state == "queued"  # type: ignore[union-attr]

    app.control.resume("default")
    bed.run_until_idle()
    assert handle.status().state == "succeeded"  # type: ignore[union-attr]


def test_tasks_with_a_hard_limit_run_without_it(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task(hard_time_limit_s=0.000_001)
    def slow() -> str:
        return "done"

    handle = slow.enqueue()
    bed.run_until_idle()

    assert handle.result() == "done"


def test_hooks_run_around_each_run(app: TaskApp, bed: TaskTestBed) -> None:
    calls: list[str] = []
    app.on_startup(lambda: calls.append("up"))
    app.on_shutdown(lambda: calls.append("down"))

    @app.task
    def note() -> None:
        calls.append("task")

    note.enqueue()
    bed.run_until_idle()

    assert calls == ["up", "task", "down"]


def test_several_tasks_run_at_once(app: TaskApp) -> None:
    together = threading.Barrier(3)

    @app.task
    def meet() -> None:
        together.wait(600)

    with TaskTestBed(app, concurrency=3) as bed:
        handles = meet.enqueue_many({} for _ in range(3))
        bed.run_until_idle(timeout_s=600)

        assert {handle.status().state for handle in handles} == {"succeeded"}  # type: ignore[union-attr]


def test_a_task_that_does_not_end_is_named(app: TaskApp, bed: TaskTestBed) -> None:
    @app.task(name="endless")
    def endless() -> None:
        spin()

    handle = endless.enqueue()

    with pytest.raises(TimeoutError, match=f"tasks still run after 0.5 s: endless {handle.id}"):
        bed.run_until_idle(timeout_s=0.5)


def test_the_app_and_the_clock_are_as_before_after_the_block(engine: Engine) -> None:
    with EmbeddedServer() as server, TaskApp(server.url, database=engine) as app:
        before = app.enqueue("any")
        with TaskTestBed(app) as bed:
            bed.move_clock(days=365)
            inside = app.enqueue("any")
            assert app.queues() == ["default"]
            assert before.status() is None

        assert app.settings.redis_url == server.url
        assert before.status() is not None
        assert inside.status() is None
        assert clock.for_scripts() == ""


def test_there_is_one_at_a_time(app: TaskApp, bed: TaskTestBed) -> None:
    with pytest.raises(RuntimeError, match="one process has one clock"), TaskTestBed(app):
        pass
    assert clock.for_scripts() != ""


@pytest.mark.parametrize("duration", [{}, {"seconds": 0}, {"hours": -1}])
def test_the_clock_does_not_go_back(bed: TaskTestBed, duration: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="forward only"):
        bed.move_clock(**duration)


def test_another_server_lists_the_queue_as_well(engine: Engine) -> None:
    with EmbeddedServer() as first, EmbeddedServer() as second, TaskApp(first.url, database=engine) as app:
        app.enqueue("any")
        app.use_server(second.url)
        app.enqueue("any")

        assert app.queues() == ["default"]


@pytest.mark.parametrize("end", ["revoked", "expired", "dead_lettered", "succeeded"])
def test_a_unique_task_that_has_not_done_its_work_keeps_no_other_from_it(end: str) -> None:
    app, ran = TaskApp(), []

    @app.task(max_retries=0, unique_for_s=3600, expires_s=60)
    def bill(order_id: int) -> None:
        ran.append(order_id)
        if end == "dead_lettered":
            raise ValueError("no price")

    with TaskTestBed(app) as bed:
        first = bill.enqueue(7)
        if end == "revoked":
            first.revoke()
        elif end == "expired":
            bed.move_clock(seconds=61)
        bed.run_until_idle()
        assert (status := first.status()) is not None
        assert status.state == end

        second = bill.enqueue(7)

        assert second.is_new == (end != "succeeded")
        assert (second.id == first.id) == (end == "succeeded")
