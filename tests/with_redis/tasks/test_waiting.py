"""Coroutines that wait for results: many at once, on one connection."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from conquiet import EmbeddedServer, QueueError
from conquiet.tasks import ResultTimeoutError, TaskApp, TaskFailedError, UnknownTaskError, chain, group
from tests.eventually import HANG_S, eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

#: More than redis-py has connections for an event loop.
MANY = 300


async def until(condition: Any) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_hundreds_of_coroutines_wait_at_once_on_one_connection(app: TaskApp, start: StartWorker) -> None:
    may_end = threading.Event()

    @app.task
    def number(of: int) -> int:
        may_end.wait(HANG_S)
        return of

    handles = number.enqueue_many({"of": each} for each in range(MANY))
    start(concurrency=2)

    async def wait_for_all() -> list[int]:
        waiting = asyncio.gather(*(handle.result_async(HANG_S) for handle in handles))
        shared = await _shared(app)
        await until(lambda: len(shared.waiting) == MANY)
        may_end.set()
        results: list[int] = await waiting
        return results

    assert asyncio.run(wait_for_all()) == list(range(MANY))


async def _shared(app: TaskApp) -> Any:
    await until(lambda: app.async_results._shared)
    return app.async_results._shared["default"]


def test_each_of_them_has_its_own_end(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def fine() -> str:
        return "fine"

    @app.task(max_retries=1, retry=QUICK)
    def bad() -> None:
        raise ValueError("no use")

    never = fine.with_options(queue="unread").enqueue()
    start()

    async def wait_for_all() -> list[Any]:
        handles = [fine.enqueue(), bad.enqueue(), fine.enqueue()]
        waiting = [*(handle.result_async(HANG_S) for handle in handles), never.result_async(0.05)]
        results = await asyncio.gather(*waiting, handles[0].result_async(), return_exceptions=True)
        # Nobody waits any more.
        assert app.async_results._shared == {}
        return results

    first, failed, third, late, again = asyncio.run(wait_for_all())
    assert (first, third, again) == ("fine", "fine", "fine")
    assert isinstance(failed, TaskFailedError)
    assert isinstance(late, ResultTimeoutError)


def test_one_that_is_cancelled_leaves_the_others_and_the_last_one_ends_the_read(
    app: TaskApp, start: StartWorker
) -> None:
    may_end = threading.Event()

    @app.task
    def wait() -> str:
        may_end.wait(HANG_S)
        return "done"

    handles = [wait.enqueue(), wait.enqueue()]
    start()

    async def run() -> str:
        first, second = (asyncio.create_task(handle.result_async(HANG_S)) for handle in handles)
        shared = await _shared(app)
        await until(lambda: len(shared.waiting) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not shared.reader.done()
        may_end.set()
        result: str = await second
        await until(lambda: shared.reader.done())
        return result

    assert asyncio.run(run()) == "done"


def test_all_of_them_see_that_the_server_is_gone() -> None:
    with EmbeddedServer() as server, TaskApp(server.url) as app:
        handles = [app.enqueue("any", {}) for _ in range(3)]

        async def run() -> list[Any]:
            waiting = asyncio.gather(
                *(handle.result_async(HANG_S) for handle in handles), return_exceptions=True
            )
            shared = await _shared(app)
            await until(lambda: len(shared.waiting) == 3 and shared.has_begun.done())
            with redis.Redis.from_url(server.url) as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
                server.stop()
            return await waiting

        errors = asyncio.run(run())

    assert [type(error) for error in errors] == [QueueError] * 3


def test_an_event_that_cannot_be_read_hides_no_end(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def one() -> int:
        return 1

    async def run() -> int:
        handle = one.enqueue()
        waiting = asyncio.create_task(handle.result_async(HANG_S))
        shared = await _shared(app)
        await until(lambda: shared.has_begun.done())
        for data in ("no json", "5", "[7]", "{}"):
            app.client.xadd(app.keys("default").events, {"data": data})
        app.client.xadd(app.keys("default").events, {"other": "x"})
        await asyncio.to_thread(start)
        result: int = await waiting
        return result

    assert asyncio.run(run()) == 1


def test_another_server_has_connections_of_its_own(app: TaskApp, server_url: str) -> None:
    async def run() -> None:
        with EmbeddedServer() as server:
            before = app.async_client
            with app.on_server(server.url):
                assert app.async_client is not before
                await app.async_client.ping()
                await app.async_client.aclose()
            await app.async_client.ping()
            await app.async_client.aclose()
            await before.aclose()

    asyncio.run(run())


def test_more_than_100_threads_wait_at_once(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def number(of: int) -> int:
        return of

    handles = number.enqueue_many({"of": each} for each in range(120))
    client: Any = app.client
    with ThreadPoolExecutor(len(handles)) as threads:
        results = [threads.submit(handle.result, HANG_S) for handle in handles]
        eventually(lambda: len(client.connection_pool._in_use_connections) == 120)
        start()

        assert [result.result(HANG_S) for result in results] == list(range(120))


def test_of_a_task_that_keeps_no_result_none_is_waited_for(app: TaskApp) -> None:
    @app.task(ignore_result=True)
    def forget() -> int:
        return 1

    handle = forget.enqueue()

    with pytest.raises(UnknownTaskError, match="ignore_result"):
        handle.result()
    with pytest.raises(UnknownTaskError, match="ignore_result"):
        asyncio.run(handle.result_async())


def test_a_result_that_expires_while_it_is_waited_for_ends_the_wait(app: TaskApp) -> None:
    handle = app.enqueue("any")
    keys = app.keys("default")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result)
        eventually(lambda: app.client.info("clients")["blocked_clients"])
        app.client.delete(keys.record(handle.id))
        # As every task that ends.
        app.client.xadd(keys.events, {"data": "[]"})

        with pytest.raises(UnknownTaskError, match="result_ttl_s has passed"):
            waiting.result(HANG_S)


def test_the_last_step_of_a_chain_is_waited_for_before_it_is_enqueued(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def add(one: int, two: int) -> int:
        return one + two

    handle = chain(add.call(1, 2), add.partial(4)).enqueue()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result)
        eventually(lambda: app.client.info("clients")["blocked_clients"])
        start()

        assert waiting.result(HANG_S) == 7


def test_everything_that_enqueues_or_waits_has_a_twin_for_event_loops(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    async def call_all() -> list[Any]:
        named = await app.enqueue_async("double", {"number": 1})
        many = await double.enqueue_many_async({"number": number} for number in (2, 3))
        last = await chain(double.call(4), double.partial()).enqueue_async()
        members = await group(double.call(5), double.call(6)).enqueue_async()
        results = [await one.result_async(HANG_S) for one in (named, *many, last)]
        results.append(await members.results_async(HANG_S))
        assert (await members.status_async()).left == 0
        return results

    start()

    assert asyncio.run(call_all()) == [2, 4, 6, 16, [10, 12]]


def test_a_coroutine_that_waits_for_a_group_is_woken_by_its_end(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    async def wait_for_all() -> list[Any]:
        handles = [await group(double.call(n), double.call(n)).enqueue_async() for n in range(20)]
        waiting = [asyncio.create_task(handle.results_async()) for handle in handles]
        with pytest.raises(ResultTimeoutError, match="0 of 2 ended"):
            await handles[0].results_async(0.01)
        await asyncio.to_thread(start)
        return await asyncio.gather(*waiting)

    assert asyncio.run(wait_for_all()) == [[2 * n, 2 * n] for n in range(20)]
