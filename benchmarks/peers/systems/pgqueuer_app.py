"""pgqueuer, with a pool of ten connections for what its jobs write."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.systems import effects

_INSERT = effects.INSERT.replace("%s", "$1")


async def main() -> PgQueuer:
    """What `pgq run` would call, which cannot start beside our version of Typer."""
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(effects.DATABASE_URL)))
    pool: Any = await asyncpg.create_pool(effects.DATABASE_URL, min_size=10, max_size=10)
    is_timed, writes = bool(os.environ.get("PEERS_TIMES")), os.environ.get("PEERS_WRITES") == "1"

    @worker.entrypoint("book")
    async def book(job: Job) -> None:
        if not is_timed:
            await asyncio.sleep(0.01)
        if writes:
            await pool.execute(_INSERT, int(job.payload or b""))
        if not is_timed:
            await asyncio.sleep(0.01)
        effects.done()

    return worker


async def work() -> None:
    """Run until it is killed."""
    await (await main()).run(batch_size=100)


async def enqueue(total: int) -> None:
    """Install it and add the jobs."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(effects.DATABASE_URL)))
    await queries.install()
    payloads: list[bytes | None] = [str(number).encode() for number in range(total)]
    await queries.enqueue(["book"] * total, payloads, [0] * total)


if __name__ == "__main__":
    asyncio.run(work() if sys.argv[1] == "work" else enqueue(int(sys.argv[1])))
