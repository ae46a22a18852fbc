"""AsyncQueue: what is true of the plain ones, and of many tasks in one event loop."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal

import pytest

from conquiet import AsyncQueue, NoConnectionError, NotReplicatedError, QueueError, StandardCodec
from conquiet.greenlets import await_here, run_plain
from tests.awaited import in_event_loop
from tests.services import free_port


@dataclass
class Order:
    number: int
    price: Decimal


def payloads(client, stream):
    return [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]


@in_event_loop
async def test_of_many_tasks_at_once_each_gets_its_own_id(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream) as queue:
        ids = await asyncio.gather(*(queue.enqueue({"n": n}) for n in range(200)))

    stored = {raw_id.decode(): json.loads(fields[b"data"])["n"] for raw_id, fields in client.xrange(stream)}
    assert [stored[entry_id] for entry_id in ids] == [*range(200)]


@in_event_loop
async def test_a_queue_that_is_closed_opens_no_connection(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream) as queue:
        await queue.enqueue({"n": 1})

    with pytest.raises(QueueError, match="it is closed"):
        await queue.enqueue_many([{"n": 2}])

    assert payloads(client, stream) == [{"n": 1}]


@in_event_loop
async def test_the_reply_of_a_task_that_was_cancelled_is_no_other_tasks(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream, max_connections=1) as queue:
        for number in range(50):
            task = asyncio.create_task(queue.enqueue({"cancelled": number}))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            entry_id = await queue.enqueue({"n": number})

            ((_, fields),) = client.xrange(stream, entry_id, entry_id)
            assert json.loads(fields[b"data"]) == {"n": number}


@in_event_loop
async def test_values_of_types_are_written_as_by_the_plain_queue(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream, codec=StandardCodec()) as queue:
        await queue.enqueue(Order(1, Decimal("1.10")))
        await queue.enqueue_many([{"price": Decimal("2.20")}])

    assert payloads(client, stream) == [{"number": 1, "price": "1.10"}, {"price": "2.20"}]


@in_event_loop
async def test_a_second_call_with_its_id_adds_nothing(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream) as queue:
        first = await queue.enqueue_once([{"n": 1}, {"n": 2}], dedupe_id="a")

        assert await queue.enqueue_once([{"n": 1}, {"n": 2}], dedupe_id="a") == first

    assert len(payloads(client, stream)) == 2


@in_event_loop
async def test_a_server_that_is_not_there_is_one_sentence(stream):
    async with AsyncQueue.from_url(f"redis://127.0.0.1:{free_port()}", stream) as queue:
        with pytest.raises(NoConnectionError, match="nothing listens at this host and port"):
            await queue.enqueue({"n": 1})


@in_event_loop
async def test_too_few_replicas_are_an_error_that_says_what_was_added(server_url, client, stream):
    async with AsyncQueue.from_url(server_url, stream) as of_url:
        queue = AsyncQueue(of_url.client, stream, min_replicas=1, replica_timeout_ms=20)
        with pytest.raises(NotReplicatedError) as raised:
            await queue.enqueue({"n": 1})

    assert raised.value.entry_ids == tuple(raw_id.decode() for raw_id, _ in client.xrange(stream))


@in_event_loop
async def test_plain_code_has_the_context_variables_of_its_task():
    name: ContextVar[str] = ContextVar("name")

    def plain() -> str:
        before = name.get()
        await_here(asyncio.sleep(0))
        return before + name.get()

    async def task(value: str) -> str:
        name.set(value)
        return await run_plain(plain)

    assert await asyncio.gather(*map(task, "abc")) == ["aa", "bb", "cc"]
