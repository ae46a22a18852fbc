"""Control: what an operator asks of queues and of all workers."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import pytest

from conquiet.queue import open_client
from conquiet.tasks import TaskApp, TaskFailedError, TaskRevokedError, TaskState, WorkerDescription
from conquiet.tasks.channel import TaskChannel
from conquiet.tasks.control.listener import ControlListener
from conquiet.tasks.keys import control_key
from conquiet.tasks.scripts import control as scripts
from conquiet.tasks.worker.controlled import ControlledLoops
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


def state_of(handle: Any) -> str | None:
    status = handle.status()
    return None if status is None else str(status.state)


def test_a_worker_that_starts_later_does_not_obey_what_was_asked_before(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def one() -> int:
        return 1

    app.control.shutdown(timeout_s=0.01)
    start()

    assert one.enqueue().result(PATIENCE_S) == 1


def test_a_request_by_name_is_answered_by_that_worker_alone(app: TaskApp, start: StartWorker) -> None:
    start(name="a")
    start(name="b")

    assert app.control.ping(["b"], timeout_s=PATIENCE_S).keys() == {"b"}
    assert app.control.ping(["absent"], timeout_s=0.05) == {"absent": None}


def test_workers_are_listed_while_they_live(app: TaskApp, start: StartWorker) -> None:
    worker = start(name="only", queues=("default", "mail"), concurrency=3)

    [listed] = app.control.workers()

    assert (listed.name, listed.queues, listed.pool, listed.concurrency) == (
        "only",
        ("default", "mail"),
        "thread",
        3,
    )
    worker.stop()
    worker.join()
    assert app.control.workers() == []


def test_inspect_shows_what_runs_and_what_is_reserved(
    app: TaskApp, start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it is free for others after 0.1 s.
    monkeypatch.setattr("conquiet.tasks.worker.long_tasks._LONG_S", PATIENCE_S)
    may_end = threading.Event()

    @app.task(name="wait")
    def wait() -> None:
        may_end.wait(PATIENCE_S)

    handles = [wait.enqueue() for _ in range(2)]
    start(name="busy", prefetch_multiplier=2)

    def both() -> Any:
        seen = app.control.inspect(timeout_s=PATIENCE_S)["busy"]
        return seen if seen and seen["active"] and seen["reserved"] else None

    seen = eventually(both)
    may_end.set()

    assert [one["id"] for one in seen["active"]] == [handles[0].id]
    assert [one["name"] for one in seen["reserved"]] == ["wait"]


def test_inspect_shows_the_next_100_scheduled_tasks_of_each_queue_of_a_worker(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(name="later")
    def later() -> None: ...

    mails = later.with_options(queue="mails", delay_s=3_600).enqueue()
    later.with_options(queue="others", delay_s=3_600).enqueue()
    app.send_many(later.with_options(delay_s=7_200 + number).call() for number in range(101))
    start(name="idle", queues=("default", "mails"))

    answer = app.control.inspect(timeout_s=PATIENCE_S)["idle"]

    assert answer is not None
    queues = [one["queue"] for one in answer["scheduled"]]
    assert (queues.count("default"), queues.count("mails"), len(queues)) == (100, 1, 101)
    [of_mails] = [one for one in answer["scheduled"] if one["queue"] == "mails"]
    assert (of_mails["id"], of_mails["name"]) == (mails.id, "later")
    status = mails.status()
    assert status is not None
    assert of_mails["due_ms"] >= status.history[0].at.timestamp() * 1000 + 3_500_000


def test_no_task_of_a_paused_queue_begins_until_it_is_resumed(app: TaskApp, start: StartWorker) -> None:
    begun: list[int] = []

    @app.task
    def note(number: int) -> None:
        begun.append(number)

    for _ in range(2):
        start(queues=("default", "mail"), concurrency=2)
    note.enqueue(0).result(PATIENCE_S)
    app.control.pause("default", timeout_s=PATIENCE_S)
    handles = [note.enqueue(number) for number in range(1, 20)]
    # Another queue goes on.
    note.with_options(queue="mail").enqueue(100).result(PATIENCE_S)
    start()
    app.control.ping(timeout_s=PATIENCE_S)
    assert begun == [0, 100]

    app.control.resume("default", timeout_s=PATIENCE_S)
    for handle in handles:
        handle.result(PATIENCE_S)

    assert sorted(begun) == [*range(20), 100]
    statuses = [handle.status() for handle in handles]
    assert {status.attempt for status in statuses if status is not None} == {0}


def test_what_a_worker_has_reserved_of_a_paused_queue_waits_too(app: TaskApp, start: StartWorker) -> None:
    begun: list[int] = []
    may_end = threading.Event()

    @app.task
    def wait(number: int) -> None:
        begun.append(number)
        may_end.wait(PATIENCE_S)

    handles = [wait.enqueue(number) for number in range(4)]
    start(prefetch_multiplier=4)
    eventually(lambda: begun)
    app.control.pause("default", timeout_s=PATIENCE_S)
    may_end.set()
    handles[0].result(PATIENCE_S)
    app.control.ping(timeout_s=PATIENCE_S)
    keys = app.keys("default")
    eventually(lambda: app.client.zcard(keys.waiting[5]) == 3)
    assert begun == [0]

    app.control.resume("default", timeout_s=PATIENCE_S)
    for handle in handles:
        handle.result(PATIENCE_S)


def test_all_workers_are_shut_down(app: TaskApp, start: StartWorker) -> None:
    workers = [start(name=name) for name in "abc"]

    answers = app.control.shutdown(timeout_s=PATIENCE_S)

    assert answers.keys() == set("abc")
    for worker in workers:
        worker.join()


def test_one_worker_is_shut_down_after_the_task_that_runs(app: TaskApp, start: StartWorker) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    def wait() -> str:
        begun.set()
        may_end.wait(PATIENCE_S)
        return "done"

    ended = start(name="ends")
    handle = wait.enqueue()
    assert begun.wait(PATIENCE_S)
    start(name="stays")
    app.control.shutdown(["ends"], timeout_s=PATIENCE_S)
    may_end.set()
    ended.join()

    assert handle.result(PATIENCE_S) == "done"
    assert app.control.ping(timeout_s=PATIENCE_S).keys() == {"stays"}


def test_a_hard_shutdown_hands_back_the_task_that_runs_as_no_attempt(
    app: TaskApp, start: StartWorker
) -> None:
    begun = threading.Event()
    is_second = threading.Event()
    attempts: list[int] = []

    @app.task(max_retries=0)
    def spin() -> str:
        attempts.append(1)
        begun.set()
        while not is_second.is_set():
            time.sleep(0.001)
        return "done"

    worker = start(name="ends")
    handle = spin.enqueue()
    assert begun.wait(PATIENCE_S)
    app.control.shutdown(hard=True, timeout_s=PATIENCE_S)
    worker.join()
    is_second.set()
    start()

    assert handle.result(PATIENCE_S) == "done"
    status = handle.status()
    assert status is not None
    assert (status.attempt, len(attempts)) == (0, 2)


def test_a_revoked_task_never_runs_and_its_status_says_so_at_once(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def never() -> None:
        raise AssertionError("it was revoked")

    @app.task
    def other() -> str:
        return "ran"

    handle = never.enqueue()
    revocation = handle.revoke()
    assert (revocation.is_revoked, revocation.state_before) == (True, TaskState.QUEUED)
    assert state_of(handle) == "revoked"
    with pytest.raises(TaskFailedError, match="revoked"):
        handle.result(PATIENCE_S)
    start()

    assert other.enqueue().result(PATIENCE_S) == "ran"
    assert state_of(handle) == "revoked"
    keys = app.keys("default")
    eventually(lambda: app.client.xlen(keys.streams[5]) == 0)
    assert app.client.xlen(keys.dead_letters) == 0
    # Nobody needs to know it any more.
    eventually(lambda: app.client.zcard(keys.revoked) == 0)


def test_whoever_waits_for_the_result_of_a_revoked_task_is_told(app: TaskApp) -> None:
    @app.task
    def never() -> None: ...

    handle = never.enqueue()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            handle.result(PATIENCE_S)
        except TaskFailedError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    handle.revoke()
    waiter.join()

    assert len(errors) == 1


def test_a_delayed_task_that_is_revoked_is_removed(app: TaskApp) -> None:
    @app.task
    def later() -> None: ...

    handle = later.with_options(delay_s=3_600).enqueue()

    assert handle.revoke().is_revoked
    keys = app.keys("default")
    assert app.client.exists(keys.delayed, keys.delayed_items, keys.revoked) == 0
    assert state_of(handle) == "revoked"


def test_a_task_that_waits_for_its_retry_is_revoked(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=5)
    def fails() -> None:
        raise ValueError("each time")

    start()
    handle = fails.enqueue()
    eventually(lambda: state_of(handle) == "retried")

    assert handle.revoke().state_before == TaskState.RETRIED
    assert state_of(handle) == "revoked"
    keys = app.keys("default")
    waits: Any = app.client.zrange(keys.waiting[5], 0, -1)
    app.client.zadd(keys.waiting[5], dict.fromkeys(waits, 0))
    eventually(lambda: app.client.xlen(keys.streams[5]) == 0)
    assert state_of(handle) == "revoked"
    assert app.client.xlen(keys.dead_letters) == 0


def test_what_a_worker_has_reserved_is_dropped_when_it_is_revoked(app: TaskApp, start: StartWorker) -> None:
    begun: list[int] = []
    may_end = threading.Event()

    @app.task
    def wait(number: int) -> None:
        begun.append(number)
        may_end.wait(PATIENCE_S)

    handles = [wait.enqueue(number) for number in range(3)]
    start(prefetch_multiplier=3)
    eventually(lambda: begun)
    for handle in handles[1:]:
        handle.revoke()
    app.control.ping(timeout_s=PATIENCE_S)
    may_end.set()
    handles[0].result(PATIENCE_S)
    keys = app.keys("default")
    eventually(lambda: app.client.xlen(keys.streams[5]) == 0)

    assert begun == [0]
    assert [state_of(handle) for handle in handles] == ["succeeded", "revoked", "revoked"]


@pytest.mark.parametrize("pool", ["thread", "async"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_running_task_that_is_terminated_gets_the_error_inside(
    app: TaskApp, start: StartWorker, pool: str, is_async: bool
) -> None:
    import asyncio

    begun = threading.Event()
    seen: list[str] = []

    if is_async:

        @app.task(name="spin")
        async def spin() -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                seen.append("cleaned up")
    else:

        @app.task(name="spin")
        def spin() -> None:
            begun.set()
            try:
                while True:
                    time.sleep(0.001)
            except TaskRevokedError as error:
                seen.append(error.task_id)
                raise

    @app.task
    def after() -> str:
        return "goes on"

    start(pool=pool)
    handle = app.enqueue("spin")
    assert begun.wait(PATIENCE_S)
    eventually(lambda: state_of(handle) == "running")
    handle.revoke(terminate=True)

    with pytest.raises(TaskFailedError, match="revoked while it ran"):
        handle.result(PATIENCE_S)
    assert seen == (["cleaned up"] if is_async else [handle.id])
    assert state_of(handle) == "revoked"
    assert after.enqueue().result(PATIENCE_S) == "goes on"
    assert app.client.exists(app.keys("default").revoked) == 0


def test_a_task_that_is_revoked_between_its_read_and_its_begin_does_not_run(app: TaskApp) -> None:
    @app.task
    def never() -> None: ...

    handle = never.enqueue()
    keys = app.keys("default")
    channel = TaskChannel(app.client, [keys], "here", app, prefetch=1, follow=lambda *_: None)
    # What was handed back is counted as it begins, in a call.
    channel.hand_back(channel.read((), 1, 1).messages)
    (msg,) = channel.read((), 1, 1).messages
    assert channel.next_message(deque([msg])) is msg
    handle.revoke()

    begin = channel.begin(msg)
    assert begin is not None
    channel.settle([begin])

    settlement = channel.settlement_without_handler(msg)
    assert settlement is not None
    assert settlement.outcome == "skipped"


def test_a_running_task_that_is_revoked_runs_to_its_end_but_is_not_tried_again(
    app: TaskApp, start: StartWorker
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    attempts: list[int] = []

    @app.task(max_retries=3, retry=QUICK)
    def fails() -> None:
        attempts.append(1)
        begun.set()
        may_end.wait(PATIENCE_S)
        raise ValueError("failed")

    start()
    handle = fails.enqueue()
    assert begun.wait(PATIENCE_S)
    eventually(lambda: state_of(handle) == "running")
    assert handle.revoke().state_before == TaskState.RUNNING
    assert state_of(handle) == "running"
    may_end.set()

    eventually(lambda: state_of(handle) == "revoked")
    assert len(attempts) == 1


def test_revoking_a_task_that_has_ended_changes_nothing_and_says_so(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def done() -> int:
        return 7

    start()
    handle = done.enqueue()
    handle.result(PATIENCE_S)

    revocation = app.revoke(handle.id)

    assert (revocation.is_revoked, revocation.state_before) == (False, TaskState.SUCCEEDED)
    assert handle.result(PATIENCE_S) == 7
    assert app.client.exists(app.keys("default").revoked) == 0


def test_a_task_without_a_record_is_revoked_by_its_queue(app: TaskApp, start: StartWorker) -> None:
    @app.task(ignore_result=True)
    def quiet() -> None:
        raise AssertionError("it was revoked")

    handle = quiet.enqueue()

    assert handle.revoke().is_revoked
    start()
    keys = app.keys("default")
    eventually(lambda: app.client.xlen(keys.streams[5]) == 0)
    assert app.client.xlen(keys.dead_letters) == 0


def test_a_listener_that_ends_leaves_before_its_connection_is_closed(
    app: TaskApp, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It cannot read, and waits to try again: to stop wakes it at once.
    app.client.set(control_key(app.namespace), "not a stream")
    is_closed, was_closed_before = threading.Event(), []
    client = open_client(server_url)
    close, register = client.close, scripts.register_worker

    def register_slowly(*arguments: Any) -> None:
        if not arguments[-1]:
            was_closed_before.append(is_closed.wait(0.2))
        register(*arguments)

    def close_and_tell() -> None:
        is_closed.set()
        close()

    monkeypatch.setattr(client, "close", close_and_tell)
    monkeypatch.setattr(scripts, "register_worker", register_slowly)
    description = WorkerDescription(name="w", queues=("default",), pool="thread", concurrency=1)
    controlled = ControlledLoops([], stop=lambda: None)
    listener = ControlListener(client, app.namespace, description, controlled, ttl_ms=20_000)
    listener.start()
    listener.stop()

    assert was_closed_before == [False]
    assert is_closed.wait(PATIENCE_S)
