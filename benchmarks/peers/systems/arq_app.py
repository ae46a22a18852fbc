"""arq."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.peers.systems import effects


async def book(_ctx: dict[str, Any], number: int) -> None:
    """One task."""
    await effects.do_on_loop(number)


class WorkerSettings:
    """What `arq` runs."""

    functions = (book,)
    redis_settings = RedisSettings.from_dsn(effects.REDIS_URL)
    max_jobs = effects.CONCURRENCY or 10


async def enqueue(total: int) -> None:
    """Add the tasks."""
    pool = await create_pool(WorkerSettings.redis_settings)
    for number in range(total):
        await pool.enqueue_job("book", number)


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
