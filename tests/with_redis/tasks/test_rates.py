"""Rates: how often tasks may begin, in all workers together."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from conquiet.tasks import TaskApp
from conquiet.tasks.rates import Bucket, Rate, RedisRateLimiter
from conquiet.tasks.scripts import control as scripts
from conquiet.testing import TaskTestBed
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0
SECOND = 1_000


def take(app: TaskApp, task: str, now: int, *, count: int = 2, period_ms: int = SECOND) -> int:
    """Take a token of one bucket, at a time of our own."""
    tokens = scripts.Tokens(count, period_ms)
    return scripts.take_rate(app.client, app.keys("default"), "bucket", task, tokens, now=str(now))


def due_times(app: TaskApp) -> list[int]:
    waits: Any = app.client.zrange(app.keys("default").waiting[5], 0, -1, withscores=True)
    return [round(due) for _, due in waits]


def test_a_bucket_has_its_tokens_at_once_and_waiting_tasks_get_times_of_their_own(app: TaskApp) -> None:
    assert [take(app, f"5:{number}-0", 10_000) for number in range(6)] == [0, 0, 500, 1_000, 1_500, 2_000]


def test_a_task_that_waited_for_its_token_takes_no_second_one(app: TaskApp) -> None:
    for number in range(4):
        take(app, f"5:{number}-0", 10_000)

    assert take(app, "5:2-0", 10_200) == 300
    assert take(app, "5:2-0", 10_500) == 0
    assert take(app, "5:3-0", 11_000) == 0
    assert take(app, "5:4-0", 11_000) == 500


def test_tasks_that_expire_before_their_turn_take_no_tokens_of_others() -> None:
    app, ran = TaskApp(), []

    @app.task(rate_limit="1/s", expires_s=5)
    def limited(number: int) -> None:
        ran.append(number)

    with TaskTestBed(app) as bed:
        each_second = []
        for second in range(30):
            for number in range(3):
                limited.enqueue(3 * second + number)
            bed.run_until_idle()
            each_second.append(len(ran))
            ran.clear()
            bed.move_clock(seconds=1)

    assert each_second == [1] * 30


def test_tasks_that_come_long_after_their_times_do_not_all_begin_at_once(app: TaskApp) -> None:
    for number in range(50):
        take(app, f"5:{number}-0", 10_000)

    # As after a pause of the queue: the last one was due at 34,000.
    begun = [number for number in range(50) if take(app, f"5:{number}-0", 60_000) == 0]

    assert len(begun) == 2


def test_a_bucket_that_nobody_uses_expires(app: TaskApp) -> None:
    for number in range(3):
        RedisRateLimiter(app.client, app.namespace).delay_ms(
            Bucket("default", "bucket"), f"5:{number}-0", Rate(1, SECOND)
        )

    keys = app.keys("default")
    assert 0 < app.client.pttl(keys.rate("bucket")) < 3_700_000
    assert 0 < app.client.pttl(keys.reserved("bucket")) < 3_700_000


def test_what_waits_comes_sooner_when_the_rate_is_raised(app: TaskApp) -> None:
    keys = app.keys("default")
    for number in range(12):
        if delay := take(app, f"5:{number}-0", 10_000):
            app.client.zadd(keys.waiting[5], {f"{number}-0": 10_000 + delay})

    # From 2 to 20 a second.
    assert take(app, "", 10_000, count=20) == 0

    assert due_times(app) == [10_000 + 50 * number for number in range(1, 11)]
    assert take(app, "5:12-0", 10_000, count=20) == 550


def test_what_waits_is_due_when_there_is_no_limit_any_more(app: TaskApp) -> None:
    keys = app.keys("default")
    for number in range(5):
        if delay := take(app, f"5:{number}-0", 10_000):
            app.client.zadd(keys.waiting[5], {f"{number}-0": 10_000 + delay})

    take(app, "", 10_000, count=1, period_ms=0)

    assert set(due_times(app)) == {10_000}
    assert app.client.exists(keys.rate("bucket"), keys.reserved("bucket")) == 0


@pytest.mark.parametrize("text", ["", "10", "0/s", "10/d", "-1/s", "1.5/s", "10/s ", None, 10])
def test_what_is_no_rate_is_refused(app: TaskApp, text: Any) -> None:
    with pytest.raises(ValueError, match="a rate is written as"):
        Rate.parse(text)
    if text is not None:
        with pytest.raises(ValueError, match="a rate is written as"):
            app.task(rate_limit=text)(lambda: None)


def test_limited_tasks_of_several_workers_begin_no_more_often_than_their_rate(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(rate_limit="20/s")
    def limited() -> int:
        # The server's clock: the one by which tokens come.
        seconds, micros = app.client.time()
        return int(seconds * 1_000 + micros // 1_000)

    handles = [limited.enqueue() for _ in range(50)]
    for _ in range(2):
        start(concurrency=2)
    begun = sorted(handle.result(PATIENCE_S) for handle in handles)

    # The first 20 at once, then one each 50 ms: the 50th not before 1,500 ms.
    assert begun[-1] - begun[0] >= 1_450
    statuses = [handle.status() for handle in handles]
    assert {status.attempt for status in statuses if status is not None} == {0}


def test_a_limited_task_that_waits_blocks_no_slot(app: TaskApp, start: StartWorker) -> None:
    @app.task(rate_limit="1/h")
    def rare(number: int) -> int:
        return number

    @app.task
    def other() -> str:
        return "ran"

    handles = [rare.enqueue(number) for number in range(20)]
    start()
    others = [other.enqueue() for _ in range(5)]

    assert {handle.result(PATIENCE_S) for handle in others} == {"ran"}
    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]) == 19)
    states = [status.state for handle in handles if (status := handle.status()) is not None]
    assert sorted(states) == ["queued"] * 19 + ["succeeded"]


def test_keys_are_limited_apart(app: TaskApp, start: StartWorker) -> None:
    begun: list[str] = []

    @app.task(rate_limit="1/h", rate_key="tenant")
    def of_tenant(tenant: str) -> None:
        begun.append(tenant)

    @app.task(rate_limit="1/h", rate_key=lambda args: args["order"]["shop"])
    def of_shop(order: dict[str, str]) -> None:
        begun.append(order["shop"])

    for name in "abab":
        of_tenant.enqueue(name)
        of_shop.enqueue({"shop": name.upper()})
    start()

    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]) == 4)
    assert sorted(begun) == ["A", "B", "a", "b"]


def test_a_rate_key_that_fails_does_not_stop_the_worker(app: TaskApp, start: StartWorker) -> None:
    @app.task(rate_limit="1000/s", rate_key=lambda args: args["absent"])
    def odd() -> str:
        return "ran"

    start()

    assert odd.enqueue().result(PATIENCE_S) == "ran"


def test_a_rate_key_that_is_no_argument_is_refused(app: TaskApp) -> None:
    with pytest.raises(ValueError, match="rate_key"):

        @app.task(rate_limit="1/s", rate_key="tennant")
        def of_tenant(tenant: str) -> None: ...


def test_a_rate_is_changed_for_workers_that_run_and_for_later_ones(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="rare", rate_limit="1/h")
    def rare(number: int) -> int:
        return number

    handles = [rare.enqueue(number) for number in range(20)]
    start()
    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]) == 19)

    answers = app.control.set_rate("rare", "1000/s", queue="default", timeout_s=PATIENCE_S)

    assert len(answers) == 1
    assert [handle.result(PATIENCE_S) for handle in handles] == list(range(20))
    start()
    app.control.set_rate("rare", None, queue="default", timeout_s=PATIENCE_S)
    more = [rare.enqueue(number) for number in range(2_000)]
    assert [handle.result(PATIENCE_S) for handle in more] == list(range(2_000))


def test_a_task_that_was_declared_without_a_rate_can_be_given_one(app: TaskApp, start: StartWorker) -> None:
    @app.task(name="free")
    def free() -> None: ...

    start()
    app.control.set_rate("free", "1/h", queue="default", timeout_s=PATIENCE_S)
    for _ in range(5):
        free.enqueue()

    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]) == 4)


def test_a_call_may_have_a_rate_of_its_own(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def free() -> None: ...

    for _ in range(3):
        free.with_options(rate_limit="1/h").enqueue()
    start()

    eventually(lambda: app.client.zcard(app.keys("default").waiting[5]) == 2)


def test_another_rate_limiter_can_be_used(app: TaskApp, start: StartWorker) -> None:
    asked: list[tuple[Bucket, Rate]] = []
    was_refused = threading.Event()

    class Mine:
        def delay_ms(self, bucket: Bucket, task: str, rate: Rate, within_ms: int | None = None) -> int:
            asked.append((bucket, rate))
            if was_refused.is_set():
                return 0
            was_refused.set()
            return 1

        def change(self, bucket: Bucket, rate: Rate | None) -> None: ...

    app.rate_limiter = Mine()

    @app.task(name="limited", rate_limit="5/m")
    def limited() -> str:
        return "ran"

    start()

    assert limited.enqueue().result(PATIENCE_S) == "ran"
    assert asked == [(Bucket("default", "limited"), Rate(5, 60_000))] * 2
