"""streaq, which stands on Redis streams."""

from __future__ import annotations

import asyncio
import sys

from streaq import Worker

from benchmarks.peers.systems import effects

_options = {} if effects.CONCURRENCY is None else {"concurrency": effects.CONCURRENCY}
worker = Worker(redis_url=effects.REDIS_URL, **_options)


@worker.task
async def book(number: int) -> None:
    """One task."""
    await effects.do_on_loop(number)


async def enqueue(total: int) -> None:
    """Add the tasks."""
    async with worker:
        for number in range(total):
            await book.enqueue(number)


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
