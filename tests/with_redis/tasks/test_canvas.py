"""Chains, groups and chords."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from typing import Any

import pytest

from conquiet.tasks import Task, TaskApp, TaskContext, TaskFailedError, chain, chord, group
from conquiet.tasks.canvas.group_handle import MemberError
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


@pytest.fixture
def add(app: TaskApp) -> Task[..., int]:
    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    return add


@pytest.fixture
def total(app: TaskApp) -> Task[..., int]:
    @app.task(queue="other")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


@pytest.fixture
def fail(app: TaskApp) -> Task[..., int]:
    @app.task(max_retries=1, retry=QUICK)
    def fail(a: int) -> int:
        raise ValueError(f"no {a}")

    return fail


def start_both(start: StartWorker) -> None:
    start(queues=("default", "other"), concurrency=2)


def test_each_step_of_a_chain_gets_the_result_of_the_one_before(
    app: TaskApp, add: Task[..., int], start: StartWorker
) -> None:
    start()

    assert chain(add.call(1), add.partial(b=10), add.partial(b=100)).enqueue().result(PATIENCE_S) == 112


def test_the_results_of_a_group_come_in_the_order_of_its_members(
    app: TaskApp, add: Task[..., int], start: StartWorker
) -> None:
    start(concurrency=3)

    handle = group(add.call(number) for number in range(1_500)).enqueue()

    assert handle.results(PATIENCE_S) == [number + 1 for number in range(1_500)]
    assert (handle.status().left, handle.status().failed) == (0, 0)


def test_the_body_of_a_chord_gets_all_results_once(
    app: TaskApp, add: Task[..., int], total: Task[..., int], start: StartWorker
) -> None:
    start_both(start)

    assert chord([add.call(n) for n in range(20)], total.partial()).enqueue().result(PATIENCE_S) == 210
    # The last member's worker forgets it after the body was enqueued.
    keys = [app.keys(queue).follow_ups for queue in ("default", "other")]
    eventually(lambda: app.client.exists(*keys) == 0)


def test_canvases_are_nested(
    app: TaskApp, add: Task[..., int], total: Task[..., int], start: StartWorker
) -> None:
    start_both(start)

    inner = chord([add.call(1), chain(add.call(2), add.partial(b=5))], total.partial())
    outer = chain(group(inner, add.call(3)), total.partial(), add.partial(b=1000))
    assert outer.enqueue().result(PATIENCE_S) == 1014

    two_groups = chain(group(add.call(1), add.call(2)), group(total.partial(), total.partial()))
    assert two_groups.enqueue().result(PATIENCE_S) == [5, 5]


def test_a_failed_step_fails_the_rest_of_its_canvas(
    app: TaskApp, add: Task[..., int], fail: Task[..., int], total: Task[..., int], start: StartWorker
) -> None:
    start_both(start)

    with pytest.raises(TaskFailedError, match="no 2"):
        chain(add.call(1), fail.partial(), add.partial(), add.partial()).enqueue().result(PATIENCE_S)
    with pytest.raises(TaskFailedError, match="member 1 of its group failed: ValueError: no 5"):
        chord([add.call(1), fail.call(5)], total.partial()).enqueue().result(PATIENCE_S)
    nested = chain(group(chord([fail.call(7)], total.partial()), add.call(1)), total.partial(), add.partial())
    with pytest.raises(TaskFailedError, match="no 7"):
        nested.enqueue().result(PATIENCE_S)


def test_errors_are_passed_to_the_body_if_asked(
    app: TaskApp, add: Task[..., int], fail: Task[..., int], start: StartWorker
) -> None:
    @app.task
    def look(results: list[Any]) -> list[Any]:
        return results

    start()
    handle = chord([add.call(1), fail.call(5)], look.partial(), on_error="pass").enqueue()

    assert handle.result(PATIENCE_S) == [2, {"error": "ValueError: no 5"}]


def test_what_a_worker_that_died_left_to_follow_is_done_by_another(
    app: TaskApp, add: Task[..., int], start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conquiet.tasks.canvas.follow_ups import FollowUps

    monkeypatch.setattr("conquiet.tasks.canvas.follow_ups._LEFT_AFTER_MS", 0)
    perform = FollowUps.perform
    left: list[str] = []

    def die_first(self: FollowUps, keys: Any, task_id: str, follow_up: str) -> bool:
        if task_id not in left:
            left.append(task_id)
            return False
        return perform(self, keys, task_id, follow_up)

    monkeypatch.setattr(FollowUps, "perform", die_first)
    start(heartbeat_ttl_s=4.0)

    assert chain(add.call(1), add.partial(b=10)).enqueue().result(PATIENCE_S) == 12


def test_a_result_that_is_too_large_to_be_passed_on_fails_the_canvas_and_no_worker(
    server_url: str, app: TaskApp, add: Task[..., int], start: StartWorker
) -> None:
    app.codec.max_bytes = 3_000

    @app.task
    def grow() -> str:
        return "x" * 2_900

    @app.task
    def take(text: str) -> int:
        return len(text)

    start()

    text = "a task before it succeeded, and its result could not be passed on: .*max_bytes"
    with pytest.raises(TaskFailedError, match=text):
        chain(grow.call(), take.partial()).enqueue().result(PATIENCE_S)
    assert add.enqueue(1).result(PATIENCE_S) == 2


def test_a_canvas_that_is_enqueued_again_with_its_id_runs_each_step_once(
    app: TaskApp, total: Task[..., int], start: StartWorker
) -> None:
    ran: list[int] = []

    @app.task
    def note(number: int) -> int:
        ran.append(number)
        return number

    inner = chain(note.call(10), note.partial())
    canvas = chain(group(note.call(1), note.call(2), inner), total.partial(), note.partial())
    handles = [canvas.enqueue(id="bill-7"), canvas.enqueue(id="bill-7")]
    groups = [group(note.call(n) for n in range(3)).enqueue(id="bills") for _ in range(2)]
    start_both(start)

    assert [handle.result(PATIENCE_S) for handle in handles] == [13, 13]
    assert [one.results(PATIENCE_S) for one in groups] == [[0, 1, 2], [0, 1, 2]]
    # Once all of it has ended, too.
    assert canvas.enqueue(id="bill-7").result(PATIENCE_S) == 13
    assert sorted(ran) == [0, 1, 1, 2, 2, 10, 10, 13]
    assert canvas.enqueue().id != canvas.enqueue().id


def test_a_step_whose_result_is_kept_for_a_moment_is_not_run_again_by_what_a_dead_worker_left(
    app: TaskApp, start: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conquiet.tasks.canvas.follow_ups import FollowUps

    ran: list[int] = []

    @app.task(result_ttl_s=0.01)
    def note(number: int) -> int:
        ran.append(number)
        return number + 1

    perform = FollowUps.perform
    left: dict[str, str] = {}

    def perform_and_remember(self: FollowUps, keys: Any, task_id: str, follow_up: str) -> bool:
        left[task_id] = follow_up
        return perform(self, keys, task_id, follow_up)

    monkeypatch.setattr(FollowUps, "perform", perform_and_remember)
    worker = start()
    chain(note.call(1), note.partial()).enqueue()
    eventually(lambda: len(left) == 2)
    # As if its worker had died before it was forgotten, longer ago than results are kept.
    time.sleep(0.02)
    for task_id, follow_up in list(left.items()):
        perform(FollowUps(app), app.keys("default"), task_id, follow_up)
    eventually(lambda: not app.client.xlen(app.keys("default").streams[5]))
    worker.stop()
    worker.join()

    assert ran == [1, 2]


def test_results_of_a_group_are_what_its_members_returned(
    app: TaskApp, add: Task[..., int], start: StartWorker
) -> None:
    @app.task
    def price(cents: int) -> Decimal:
        return Decimal(cents) / 100

    start()
    inner = group(add.call(1), add.call(2))
    handle = group(price.call(150), chain(add.call(1), price.partial()), inner).enqueue()

    assert handle.results(PATIENCE_S) == [Decimal("1.5"), Decimal("0.02"), [2, 3]]


def test_a_chain_over_several_queues_is_revoked_as_a_whole(
    app: TaskApp, add: Task[..., int], total: Task[..., int], start: StartWorker
) -> None:
    handle = chain(group(add.call(1), add.call(2)), total.partial()).enqueue()

    handle.revoke()
    start_both(start)

    with pytest.raises(TaskFailedError, match="revoked"):
        handle.result(PATIENCE_S)
    ended = eventually(lambda: app.control.tasks("default", "ended").tasks)
    assert {event.state for event in ended} == {"revoked"}


@pytest.mark.parametrize("terminate", [False, True])
def test_a_group_is_revoked_as_a_whole(app: TaskApp, start: StartWorker, terminate: bool) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task(max_retries=3, retry=QUICK)
    def wait(number: int) -> int:
        begun.set()
        while not may_end.is_set():
            time.sleep(0.001)
        return number

    start()
    handle = group(wait.call(number) for number in range(3)).enqueue()
    assert begun.wait(PATIENCE_S)
    handle.revoke(terminate=terminate)
    # What the worker has reserved is dropped when it knows.
    app.control.ping(timeout_s=PATIENCE_S)
    if not terminate:
        may_end.set()

    results = handle.results(PATIENCE_S, on_error="pass")
    may_end.set()

    # One that runs goes on to its end, unless it is interrupted.
    assert [isinstance(result, MemberError) for result in results] == [terminate, True, True]


def test_a_task_that_is_enqueued_with_the_meta_of_a_member_is_no_member(
    app: TaskApp, start: StartWorker
) -> None:
    seen: list[dict[str, Any]] = []

    @app.task
    def beside(ctx: TaskContext) -> None:
        seen.append(dict(ctx.meta))

    @app.task
    def member(number: int, ctx: TaskContext) -> int:
        beside.with_options(meta=ctx.meta).enqueue().result(PATIENCE_S)
        return number

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    members = member.with_options(meta={"tenant": "a"}, expires_s=3_600)
    # A member waits for the task beside it.
    start(concurrency=3)

    assert chord([members.call(1), members.call(2)], total.partial()).enqueue().result(PATIENCE_S) == 3
    assert seen == [{"schemaVersion": 1, "tenant": "a"}] * 2


@pytest.mark.parametrize("name", ["canvas", "retry", "schedule", "expiresAt", "softTimeLimitMs"])
def test_meta_with_names_that_conquiet_writes_is_refused(app: TaskApp, name: str) -> None:
    with pytest.raises(ValueError, match=f"meta must not have {name}: conquiet writes that"):
        app.enqueue("any", meta={name: {}})
