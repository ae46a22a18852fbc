"""taskiq on its broker for Redis streams."""

from __future__ import annotations

import asyncio
import sys

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.systems import effects

broker = RedisStreamBroker(url=effects.REDIS_URL)
if effects.HAS_RESULTS:
    broker = broker.with_result_backend(RedisAsyncResultBackend(effects.REDIS_URL))


@broker.task(task_name="book")
async def book(number: int) -> None:
    """One task."""
    await effects.do_on_loop(number)


async def enqueue(total: int) -> None:
    """Add the tasks."""
    await broker.startup()
    for number in range(total):
        await book.kiq(number)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
