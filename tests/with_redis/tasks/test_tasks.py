"""A task from its call to its result."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel
from redis.connection import AbstractConnection
from sqlalchemy import Engine, func, insert, select

from conquiet.db import DbSession
from conquiet.tasks import (
    DeadLetter,
    ResultTimeoutError,
    Retry,
    TaskApp,
    TaskArgumentsError,
    TaskContext,
    TaskFailedError,
    TaskState,
    TaskTooLargeError,
    current_task,
)
from tests.conftest import effects
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


class Order(BaseModel):
    id: UUID
    at: datetime
    lines: list[Line]
    colour: Colour


def test_the_result_is_what_the_function_returned(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    start()

    assert add.enqueue(2).result(PATIENCE_S) == 3
    assert add.enqueue(2, b=5).result(PATIENCE_S) == 7
    assert add(2, 3) == 5


def test_typed_arguments_and_results_come_back_equal(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def same(order: Order) -> Order:
        assert isinstance(order.lines[0], Line)
        return order

    start()
    order = Order(id=uuid4(), at=datetime.now(UTC), lines=[Line("a", Decimal("1.10"))], colour=Colour.RED)

    assert same.enqueue(order).result(PATIENCE_S) == order


def test_arguments_that_do_not_fit_are_refused_when_they_are_enqueued(app: TaskApp) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(TaskArgumentsError, match="number"):
        double.enqueue(number="many")
    with pytest.raises(TaskArgumentsError, match="no parameter 'other'"):
        double.enqueue(other=1)
    with pytest.raises(TaskArgumentsError, match="number is missing"):
        double.enqueue()
    assert app.queues() == []


def test_arguments_without_a_type_must_be_json(app: TaskApp) -> None:
    @app.task
    def keep(anything):
        return anything

    with pytest.raises(TaskArgumentsError, match="anything"):
        keep.enqueue(datetime.now(UTC))


def test_a_coroutine_runs_in_threads_and_on_the_shared_event_loop(app: TaskApp, start: StartWorker) -> None:
    @app.task
    async def later(text: str) -> str:
        await asyncio.sleep(0.01)
        return f"{text} {current_task().attempt}"

    start()
    assert later.enqueue("a").result(PATIENCE_S) == "a 0"
    start(pool="async", concurrency=3)
    assert [one.result(PATIENCE_S) for one in later.enqueue_many({"text": c} for c in "abc")] == [
        "a 0",
        "b 0",
        "c 0",
    ]


def test_a_task_that_fails_is_retried_with_its_attempt_counted_from_0(
    app: TaskApp, start: StartWorker
) -> None:
    attempts: list[int] = []

    @app.task(max_retries=3, retry=QUICK)
    def third_time(ctx: TaskContext) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt < 2:
            raise ValueError("not yet")
        return ctx.attempt

    start()
    handle = third_time.enqueue()

    assert handle.result(PATIENCE_S) == 2
    assert attempts == [0, 1, 2]
    status = handle.status()
    assert status is not None
    assert [step.state for step in status.history] == [
        "queued",
        *("running", "retried") * 2,
        "running",
        "succeeded",
    ]


def test_a_task_that_fails_too_often_is_a_dead_letter_with_its_error(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def never() -> None:
        raise KeyError("absent")

    start()
    handle = never.enqueue()

    with pytest.raises(TaskFailedError, match="KeyError: 'absent'") as failed:
        handle.result(PATIENCE_S)
    assert failed.value.state == TaskState.DEAD_LETTERED
    status = handle.status()
    assert status is not None
    assert status.attempt == 1
    assert "in never" in (status.traceback or "")
    assert app.client.xlen(app.keys("default").dead_letters) == 1
    assert app.client.xlen(app.keys("default").streams[5]) == 0


def test_a_task_may_ask_to_be_retried_or_given_up(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=5)
    def answer(ctx: TaskContext) -> object:
        return Retry(delay_ms=1, reason="later") if ctx.attempt == 0 else DeadLetter("no use")

    start()

    with pytest.raises(TaskFailedError, match="no use"):
        answer.enqueue().result(PATIENCE_S)


def test_a_name_that_no_worker_knows_is_a_dead_letter(app: TaskApp, start: StartWorker) -> None:
    start()

    with pytest.raises(TaskFailedError, match=r"shop\.absent"):
        app.enqueue("shop.absent", {"order": 1}).result(PATIENCE_S)


def test_arguments_that_do_not_fit_when_they_are_run_are_a_dead_letter(
    app: TaskApp, start: StartWorker
) -> None:
    handle = app.enqueue("bill", {"order_id": "seven"})

    @app.task(name="bill")
    def bill(order_id: int) -> None:
        raise AssertionError(order_id)

    start()

    with pytest.raises(TaskFailedError, match="order_id"):
        handle.result(PATIENCE_S)


def test_an_entry_that_is_no_task_is_a_dead_letter_and_others_run(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def fine() -> str:
        return "fine"

    first = fine.enqueue()
    keys = app.keys("default")
    app.client.xadd(keys.streams[5], {"data": '{"id": 5}'})
    app.client.xadd(keys.streams[5], {"other": "field"})
    second = fine.enqueue()
    start()

    assert [first.result(PATIENCE_S), second.result(PATIENCE_S)] == ["fine", "fine"]
    eventually(lambda: app.client.xlen(keys.dead_letters) == 2)


@pytest.mark.parametrize(
    "meta",
    [
        {"expiresAt": "tomorrow"},
        {"expiresAt": "2026-01-01T00:00:00"},
        {"expiresAt": 5},
        {"retry": {"backoff": "sometimes"}},
        {"retry": {"baseDelayMs": "1"}},
    ],
)
def test_meta_that_no_worker_can_use_is_a_dead_letter_and_ends_no_worker(
    app: TaskApp, start: StartWorker, meta: dict[str, Any]
) -> None:
    @app.task(name="one")
    def one() -> int:
        return 1

    worker = start()
    one.enqueue().result(PATIENCE_S)
    envelope = app.envelope(one.call())
    envelope.meta = meta
    keys = app.keys("default")
    app.client.xadd(keys.streams[5], {"data": app.codec.encode(envelope).data})
    eventually(lambda: app.client.xlen(keys.dead_letters) == 1 or not worker.is_running)

    assert one.enqueue().result(PATIENCE_S) == 1
    letters: Any = app.client.xrange(keys.dead_letters)
    [(_, letter)] = letters
    assert b"its meta cannot be used" in letter[b"data"]


@pytest.mark.parametrize("task_id", ["order-7", "8b0f6f1e-7a55-4c2c-9d1e-0d6f6c1e9a11", "ü", "-"])
def test_a_task_may_have_any_id_that_its_producer_gave_it(
    app: TaskApp, start: StartWorker, task_id: str
) -> None:
    @app.task(name="one")
    def one() -> int:
        return 1

    worker = start()
    envelope = app.envelope(one.call())
    envelope.id = task_id
    [handle] = app.send_envelopes([(envelope, one.options)])

    assert handle.result(PATIENCE_S) == 1
    worker.stop()
    worker.join()


def test_a_canvas_that_cannot_be_read_ends_no_worker(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="one")
    def one() -> int:
        return 1

    worker = start()
    canvases: list[dict[str, Any]] = [
        {},
        {"id": 1, "then": 5, "member": None},
        {"id": "c", "then": [{}], "member": None},
    ]
    for canvas in canvases:
        envelope = app.envelope(one.call())
        envelope.meta = {"canvas": canvas}
        [handle] = app.send_envelopes([(envelope, one.options)])
        assert handle.result(PATIENCE_S) == 1

    assert one.enqueue().result(PATIENCE_S) == 1
    assert worker.is_running


def test_a_higher_priority_is_run_first(app: TaskApp, start: StartWorker) -> None:
    order: list[int] = []

    @app.task
    def note(number: int) -> None:
        order.append(number)

    handles = [note.with_options(priority=priority).enqueue(priority) for priority in (0, 5, 9, 3, 9, 0)]
    start()
    for handle in handles:
        handle.result(PATIENCE_S)

    assert order == [9, 9, 5, 3, 0, 0]


def test_a_delayed_task_is_not_run_before_its_time(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def when() -> datetime:
        return datetime.now(UTC)

    start()
    eta = datetime.now(UTC) + timedelta(seconds=0.4)
    handles = [when.with_options(eta=eta).enqueue(), when.with_options(delay_s=0.4).enqueue()]

    assert all(handle.result(PATIENCE_S) >= eta - timedelta(milliseconds=5) for handle in handles)


def test_a_task_that_has_expired_is_not_run(app: TaskApp, start: StartWorker) -> None:
    @app.task(expires_s=0.001)
    def late() -> None:
        raise AssertionError

    handle = late.with_options(delay_s=0.05).enqueue()
    start()

    with pytest.raises(TaskFailedError, match="expired"):
        handle.result(PATIENCE_S)


def test_a_unique_task_is_enqueued_once_for_its_arguments(app: TaskApp, start: StartWorker) -> None:
    @app.task(unique_for_s=600)
    def once(number: int) -> int:
        return number

    first, second, other = once.enqueue(1), once.enqueue(1), once.enqueue(2)
    start()

    assert (second.id, second.is_new) == (first.id, False)
    assert second.result(PATIENCE_S) == 1
    assert other.is_new


@pytest.mark.parametrize("is_listened", [False, True])
def test_a_record_that_others_have_replaced_holds_up_no_queue(
    app: TaskApp, start: StartWorker, is_listened: bool
) -> None:
    @app.task
    def one(number: int) -> int:
        return number

    handles = [one.enqueue(number) for number in range(3)]
    app.client.set(app.keys("default").record(handles[1].id), "not a record")
    if is_listened:
        app.client.hset(app.keys("default").meta, "listened", str(2**52))
    start()

    assert [handle.result(PATIENCE_S) for handle in handles] == [0, 1, 2]


def test_what_cannot_be_a_result_fails_the_task_and_is_named(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="opens", max_retries=0)
    def opens():
        return threading.Lock()

    start()

    with pytest.raises(TaskFailedError, match="TaskResultError: the result of task 'opens' cannot be stored"):
        opens.enqueue().result(PATIENCE_S)


def test_a_task_whose_result_cannot_be_kept_is_not_run_again(app: TaskApp, start: StartWorker) -> None:
    ran: list[str] = []

    @app.task(retry=QUICK)
    def lock():
        ran.append("lock")
        return threading.Lock()

    @app.task(retry=QUICK)
    def number() -> int:
        ran.append("number")
        return "none"  # type: ignore[return-value]

    @app.task(retry=QUICK)
    def large(session: DbSession) -> str:
        ran.append("large")
        return "x" * (1 << 21)

    start()

    for task, problem in (
        (lock, "TaskResultError"),
        (number, "TaskResultError"),
        (large, "TaskTooLargeError"),
    ):
        with pytest.raises(TaskFailedError, match=problem):
            task.enqueue().result(PATIENCE_S)
    assert ran == ["lock", "number", "large"]


def test_an_error_with_text_that_is_not_utf8_is_kept_and_the_worker_goes_on(
    app: TaskApp, start: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest-xdist cannot send such a log to its controller.
    caplog.set_level(logging.CRITICAL)
    name = os.fsdecode(b"no such file \xff")

    @app.task(max_retries=1, retry=QUICK)
    def read() -> None:
        raise ValueError(name)

    @app.task
    def give_up():
        return DeadLetter(name)

    @app.task(max_retries=0)
    def later():
        return Retry(reason=name)

    @app.task
    def fine() -> int:
        return 1

    start()

    for task in (read, give_up, later):
        with pytest.raises(TaskFailedError, match=r"no such file .*udcff"):
            task.enqueue().result(PATIENCE_S)
    assert fine.enqueue().result(PATIENCE_S) == 1


def test_a_task_without_a_record_may_return_anything(app: TaskApp, start: StartWorker) -> None:
    ran: list[str] = []

    @app.task(ignore_result=True, max_retries=0)
    def opens():
        ran.append("opens")
        return threading.Lock()

    @app.task
    def last() -> None: ...

    start()
    opens.enqueue()
    last.enqueue().result(PATIENCE_S)

    assert ran == ["opens"]
    assert app.control.queue("default").dead_letters == 0


def test_a_task_without_a_record_leaves_no_key(app: TaskApp, start: StartWorker) -> None:
    done = threading.Event()

    @app.task(ignore_result=True)
    def quiet() -> None:
        done.set()

    start()
    handle = quiet.enqueue()

    assert done.wait(PATIENCE_S)
    assert handle.status() is None
    assert app.client.keys(f"{app.namespace}:*:task:*") == []


def test_many_are_enqueued_in_order_and_all_of_them_run(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def square(number: int) -> int:
        return number * number

    start(concurrency=3)
    handles = square.enqueue_many({"number": number} for number in range(300))

    assert [handle.result(PATIENCE_S) for handle in handles] == [number * number for number in range(300)]
    assert len({handle.id for handle in handles}) == 300


def test_effects_and_result_of_a_task_with_a_session_are_one_transaction(
    app: TaskApp, start: StartWorker, engine: Engine
) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def book(entry_id: str, session: DbSession, ctx: TaskContext) -> str:
        session.execute(insert(effects), {"entry_id": entry_id})
        if ctx.attempt == 0:
            raise ValueError("rolled back")
        return entry_id

    start()

    assert book.enqueue("one").result(PATIENCE_S) == "one"
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(effects)).scalar() == 1


def test_a_result_that_is_not_there_in_time_says_so(app: TaskApp) -> None:
    @app.task
    def never() -> None: ...

    handle = never.enqueue()

    with pytest.raises(ResultTimeoutError) as raised:
        handle.result(timeout_s=0.05)

    assert (raised.value.queue, raised.value.state) == ("default", "queued")
    assert str(raised.value).endswith(
        "it is queued: does a worker read queue 'default'? `conquiet doctor` says"
    )


def test_a_task_that_its_worker_does_not_know_says_which_ones_it_knows(
    app: TaskApp, start: StartWorker
) -> None:
    for number in range(12):
        app.task(name=f"known-{number:02}")(lambda: None)
    start()

    with pytest.raises(TaskFailedError) as raised:
        app.enqueue("tasks.greet").result(PATIENCE_S)

    text = str(raised.value)
    assert "no task of this worker is named 'tasks.greet'; it knows known-00, known-01, " in text
    assert "known-09 and 2 more. A task declared in __main__ has another name" in text
    assert "known-10" not in text


def test_what_is_too_large_is_refused(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=0)
    def grow(text: str) -> str:
        return text * 2_000

    start()

    with pytest.raises(TaskTooLargeError, match="max_bytes"):
        grow.enqueue("x" * (1 << 20))
    with pytest.raises(TaskFailedError, match="TaskTooLargeError"):
        grow.enqueue("x" * 1_000).result(PATIENCE_S)


def test_progress_is_seen_while_the_task_runs(app: TaskApp, start: StartWorker) -> None:
    seen = threading.Event()

    @app.task
    def work(ctx: TaskContext) -> None:
        ctx.progress(0.4, "nearly half")
        seen.wait(PATIENCE_S)

    start()
    handle = work.enqueue()

    eventually(lambda: (status := handle.status()) is not None and status.progress == 0.4)
    eventually(lambda: (status := handle.status()) is not None and status.state is TaskState.RUNNING)
    seen.set()
    handle.result(PATIENCE_S)


def test_results_are_awaited_on_an_event_loop(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    start()

    async def both() -> list[int]:
        handles = [await add.enqueue_async(a, 1) for a in (1, 2)]
        return list(await asyncio.gather(*(handle.result_async(PATIENCE_S) for handle in handles)))

    assert asyncio.run(both()) == [2, 3]


@pytest.mark.parametrize("hint", [list, list[float], dict, Any])
def test_nan_is_refused_and_never_becomes_null(app: TaskApp, hint: Any) -> None:
    def take(values: Any) -> None: ...

    take.__annotations__["values"] = hint
    task = app.task(name="take")(take)
    values = {"a": math.nan} if hint is dict else [math.nan]

    with pytest.raises((TaskArgumentsError, ValueError), match=r"nan|JSON"):
        task.enqueue(values)


def test_a_batch_is_enqueued_in_one_round_trip_for_up_to_1000(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def note(number: int) -> None: ...

    # The queue is listed, its priority has its group, and the server knows the script.
    note.enqueue_many([{"number": 0}])
    sent: list[Any] = []
    send: Any = AbstractConnection.send_packed_command

    def counted(connection: AbstractConnection, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(connection, command, check_health)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    note.enqueue_many({"number": number} for number in range(1_000))
    of_a_thousand = len(sent)
    note.enqueue_many({"number": number} for number in range(1_001))
    of_one_more = len(sent) - of_a_thousand

    assert (of_a_thousand, of_one_more) == (1, 2)
    assert app.client.xlen(app.keys("default").streams[5]) == 2_002
