"""Options of single calls: what differs from the task's own declaration is carried to the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conquiet.tasks import RetryPolicy, TaskApp, TaskContext, TaskFailedError
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0


class NoStockError(LookupError):
    """As a shop has it."""


@pytest.fixture
def attempts(app: TaskApp) -> list[tuple[str, int]]:
    """The attempts of `fails`, a task that raises what it is told; it is tried again after a `ValueError`."""
    made: list[tuple[str, int]] = []

    @app.task(name="fails", max_retries=2, retry=replace(QUICK, retry_on=(ValueError,)))
    def fails(kind: str, ctx: TaskContext) -> None:
        made.append((kind, ctx.attempt))
        raise {"stock": NoStockError, "lookup": LookupError, "value": ValueError}[kind](kind)

    return made


@pytest.mark.parametrize(
    ("retry", "kind", "count"),
    [
        (QUICK, "stock", 3),
        (replace(QUICK, never_on=(NoStockError,)), "stock", 1),
        (replace(QUICK, never_on=(LookupError,)), "stock", 1),
        (replace(QUICK, never_on=(NoStockError,)), "lookup", 3),
        (replace(QUICK, retry_on=(NoStockError,)), "stock", 3),
        (replace(QUICK, retry_on=(NoStockError,)), "lookup", 1),
        (replace(QUICK, retry_on=(NoStockError,)), "value", 1),
        (replace(QUICK, retry_on=(ValueError,), max_delay_ms=4), "value", 3),
        (replace(QUICK, retry_on=(ValueError,), max_delay_ms=4), "stock", 1),
    ],
)
def test_a_call_has_exceptions_of_its_own_after_which_it_is_or_is_not_tried_again(
    app: TaskApp, start: StartWorker, attempts: list[Any], retry: RetryPolicy, kind: str, count: int
) -> None:
    start()
    with pytest.raises(TaskFailedError):
        app.tasks["fails"].with_options(retry=retry).enqueue(kind).result(PATIENCE_S)

    assert attempts == [(kind, number) for number in range(count)]


def test_a_caller_that_does_not_import_the_task_names_exceptions_too(
    app: TaskApp, start: StartWorker, server_url: str, attempts: list[Any]
) -> None:
    start()
    with TaskApp(server_url, namespace=app.namespace) as caller:
        retry = replace(QUICK, never_on=(ValueError,))
        handle = caller.enqueue("fails", {"kind": "value"}, retry=retry)
        with pytest.raises(TaskFailedError, match="ValueError: value"):
            handle.result(PATIENCE_S)

    assert attempts == [("value", 0)]


def test_a_call_has_a_rate_key_of_its_own_or_none(app: TaskApp, start: StartWorker) -> None:
    begun: list[str] = []

    @app.task(rate_limit="1/h", rate_key="tenant")
    def note(tenant: str, region: str) -> None:
        begun.append(tenant + region)

    for tenant in "ab":
        note.with_options(rate_key="region").enqueue(tenant, "r")
        note.with_options(rate_key=None).enqueue(tenant, "s")
        note.enqueue(tenant, "t")
    start()

    eventually(lambda: len(begun) == 4 and app.client.zcard(app.keys("default").waiting[5]) == 2)
    assert sorted(begun) == ["ar", "as", "at", "bt"]


def test_a_call_is_not_limited_if_it_says_so(app: TaskApp, start: StartWorker) -> None:
    @app.task(rate_limit="1/h")
    def rare(number: int) -> int:
        return number

    start()
    free = rare.with_options(rate_limit=None)

    assert [free.enqueue(number).result(PATIENCE_S) for number in range(3)] == [0, 1, 2]


def test_a_rate_key_of_a_call_that_could_not_be_carried_is_refused(app: TaskApp) -> None:
    @app.task(rate_limit="1/h")
    def rare(number: int) -> None: ...

    with pytest.raises(ValueError, match="rate_key"):
        rare.with_options(rate_key="numbr")
    with pytest.raises(ValueError, match="cannot carry a function"):
        rare.with_options(rate_key=lambda args: str(args["number"])).enqueue(1)


@pytest.mark.parametrize(
    "name", ["delay_s", "expires_s", "result_ttl_s", "soft_time_limit_s", "unique_for_s"]
)
def test_a_time_of_more_than_a_century_is_refused_and_not_found_out_by_redis(app: TaskApp, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at most 100 years"):
        app.task(name="far", **{name: 1e12})(lambda: None)


def test_a_task_that_returns_what_has_not_run_yet_has_failed_also_if_nobody_reads_its_result(
    app: TaskApp, start: StartWorker
) -> None:
    async def later() -> None: ...

    @app.task(name="forgets", ignore_result=True, max_retries=0)
    def forgets() -> Any:
        return later()  # without `await`

    start()
    forgets.enqueue()
    eventually(lambda: app.control.queue("default").dead_letters == 1)
    [letter] = app.control.tasks("default", "dead_lettered").tasks

    assert "has not run yet" in str(letter.error)
