"""What operators see of queues, and how dead letters are retried."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest

from conquiet.tasks import DeadLetterError, TaskApp, TaskCall, TaskContext, TaskFailedError, chord
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


def pages(app: TaskApp, where: Any, *, limit: int = 3) -> list[Any]:
    """All tasks of a place, page by page."""
    found, after = [], None
    while True:
        page = app.control.tasks("default", where, limit=limit, after=after)
        assert len(page.tasks) <= limit
        found += page.tasks
        if page.after is None:
            return found
        after = page.after


def fail(app: TaskApp, start: StartWorker, count: int = 1) -> list[Any]:
    """Dead letters of tasks that worked if they were retried."""

    @app.task(name="fails", max_retries=1, retry=QUICK)
    def fails(number: int, ctx: TaskContext) -> Any:
        if "retryOf" not in ctx.meta:
            raise ValueError(f"number {number}")
        return [number, ctx.attempt]

    handles = [fails.enqueue(number) for number in range(count)]
    start()
    for handle in handles:
        with pytest.raises(TaskFailedError):
            handle.result(PATIENCE_S)
    return handles


def test_a_queue_says_how_many_tasks_are_where(app: TaskApp, start: StartWorker) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    @app.task(rate_limit="1/h")
    def rare() -> None: ...

    for _ in range(4):
        rare.with_options(priority=7).enqueue()
    start()
    eventually(lambda: app.control.queue("default").waiting == 3)
    wait.with_options(delay_s=3_600).enqueue()
    first = wait.enqueue()
    assert begun.wait(PATIENCE_S)
    second = wait.enqueue()
    stats = app.control.queue("default")
    may_end.set()
    for handle in (first, second):
        handle.result(PATIENCE_S)

    assert (stats.queued, stats.in_flight, stats.waiting, stats.delayed) == (1, 1, 3, 1)
    assert (stats.dead_letters, stats.consumers) == (0, 1)
    assert not stats.is_paused
    assert [one.priority for one in stats.priorities] == [7, 5]
    assert stats.oldest_age_ms is not None


def test_tasks_are_listed_by_where_they_are_page_by_page(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="one")
    def one(number: int) -> None: ...

    queued = [one.with_options(priority=priority).enqueue(1) for priority in (9, 9, 9, 9, 5, 5, 5, 5, 0)]
    delayed = [one.with_options(delay_s=3_600 + number).enqueue(number) for number in range(7)]

    assert [task.id for task in pages(app, "queued")] == [handle.id for handle in queued]
    assert [task.id for task in pages(app, "delayed")] == [handle.id for handle in delayed]
    assert {(task.name, task.state, task.priority) for task in pages(app, "delayed")} == {
        ("one", "delayed", 5)
    }
    start()
    for handle in queued:
        handle.result(PATIENCE_S)
    ended = pages(app, "ended")
    assert sorted(task.id for task in ended) == sorted(handle.id for handle in queued)
    assert {task.state for task in ended} == {"succeeded"}
    assert pages(app, "queued") == []


def test_only_tasks_that_have_ended_are_listed_as_ended(app: TaskApp, start: StartWorker) -> None:
    """What follows in a canvas is an event, too, when it is enqueued."""

    @app.task
    def add(one: int, two: int) -> int:
        return one + two

    @app.task
    def total(parts: list[int]) -> int:
        return sum(parts)

    start()
    for _ in range(3):
        assert (
            chord([add.call(one=1, two=2), add.call(one=3, two=4)], total.partial()).enqueue().result() == 10
        )
    eventually(lambda: len(pages(app, "ended")) >= 9)

    assert [task.state for task in pages(app, "ended")] == ["succeeded"] * 9


def test_tasks_that_wait_and_that_are_in_flight_are_listed(app: TaskApp, start: StartWorker) -> None:
    may_end = threading.Event()

    @app.task
    def wait() -> None:
        may_end.wait(PATIENCE_S)

    @app.task(rate_limit="1/h", priority=9)
    def rare() -> None: ...

    for _ in range(8):
        rare.enqueue()
    start(concurrency=2)
    eventually(lambda: len(pages(app, "waiting")) == 7)
    running = [wait.enqueue(), wait.enqueue()]
    eventually(lambda: len(pages(app, "in_flight")) == 2)
    seen = pages(app, "in_flight", limit=1)
    may_end.set()

    assert [task.id for task in seen] == [handle.id for handle in running]
    assert all(task.consumer for task in seen)
    assert {task.at_ms is not None for task in pages(app, "waiting")} == {True}


def test_a_dead_letter_is_retried_once(app: TaskApp, start: StartWorker) -> None:
    [handle] = fail(app, start)
    [letter] = pages(app, "dead_lettered")

    first = app.control.retry(letter.letter_id, queue="default")
    again = app.control.retry(handle.id, queue="default")

    assert again == first
    assert app.handle(first).result(PATIENCE_S) == [0, 0]
    with pytest.raises(DeadLetterError, match="retried or purged before"):
        app.control.retry(letter.letter_id, queue="default")


@pytest.mark.parametrize("task_id", ["beat:nightly:1767225600000", "bill-7.1", "ü"])
def test_a_dead_letter_is_found_by_the_id_of_its_task_whatever_that_is(
    app: TaskApp, start: StartWorker, task_id: str
) -> None:
    fail(app, start)
    fails = app.tasks["fails"]
    envelope = app.envelope(fails.call(number=7))
    envelope.id = task_id
    [handle] = app.send_envelopes([(envelope, fails.options)])
    with pytest.raises(TaskFailedError):
        handle.result(PATIENCE_S)
    found = app.control.letter(task_id, queue="default")
    new = app.control.retry(task_id, queue="default")

    assert found is not None
    assert (found.task_id, found.args) == (task_id, {"number": 7})
    assert app.handle(new).result(PATIENCE_S) == [7, 0]
    assert app.control.purge([task_id], queue="default") == 0


@pytest.mark.parametrize("name", ["1700000000000-0", "no id", ""])
def test_a_dead_letter_that_is_not_there_is_an_error(app: TaskApp, name: str) -> None:
    with pytest.raises(DeadLetterError, match="cannot be retried"):
        app.control.retry(name, queue="default")


def test_a_letter_without_a_task_cannot_be_retried_and_stays(app: TaskApp, start: StartWorker) -> None:
    keys = app.keys("default")

    @app.task
    def one() -> None: ...

    one.enqueue()
    app.client.xadd(keys.streams[5], {"data": "no task"})
    app.client.xadd(keys.dead_letters, {"other": "field"})
    start()
    eventually(lambda: app.client.xlen(keys.dead_letters) == 2)
    [letter] = [task for task in pages(app, "dead_lettered") if task.consumer]

    with pytest.raises(DeadLetterError, match="contains no task"):
        app.control.retry(letter.letter_id, queue="default")
    assert app.client.xlen(keys.dead_letters) == 2


def test_a_letter_of_a_signed_task_is_retried_by_the_app_that_can_sign(server_url: str) -> None:
    from conquiet.tasks.security import HmacKey, Signing

    signing = Signing({"a": HmacKey(b"x" * 32)}, active="a")
    namespace = f"tasks-{uuid.uuid4().hex[:10]}"
    with TaskApp(server_url, namespace=namespace, signing=signing) as signed:
        keys = signed.keys("default")
        envelope = json.loads(signed.codec.encode(signed.envelope(TaskCall("one", {}))).data)
        letter = json.dumps({"originalMessageId": envelope["id"], "envelope": envelope})
        letter_id: Any = signed.client.xadd(keys.dead_letters, {"data": letter})
        with (
            TaskApp(server_url, namespace=namespace) as unsigned,
            pytest.raises(DeadLetterError, match="it is signed"),
        ):
            unsigned.control.retry(letter_id.decode(), queue="default")
        new_id = signed.control.retry(letter_id.decode(), queue="default")
        entries: Any = signed.client.xrange(keys.streams[5])
        [(_, fields)] = entries
        assert signed.codec.decode(fields[b"data"]).id == new_id


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({"errortype": "X"}, "'errortype' is not a filter of dead letters: those are error_type, task"),
        ({"group": "billing"}, "'group' is not a filter"),
        ({"since_ms": "1700000000000"}, "since_ms must be of type int"),
        ({"until_ms": True}, "until_ms must be of type int"),
        ({"error_type": ValueError}, "error_type must be of type str"),
        ({"task": None}, "task must be of type str"),
    ],
)
def test_a_filter_of_dead_letters_that_would_not_be_applied_is_refused(
    app: TaskApp, start: StartWorker, which: Any, said: str
) -> None:
    fail(app, start)

    with pytest.raises(TypeError, match=said):
        app.control.retry_all(queue="default", **which)

    assert app.control.queue("default").dead_letters == 1
