"""FastStream on Redis streams, in a group, acked after the handler."""

from __future__ import annotations

import asyncio
import os
import sys

from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from benchmarks.peers.systems import effects

broker = RedisBroker(effects.REDIS_URL)
app = FastStream(broker)


_consumer = f"worker-{os.environ.get('PEERS_WORKER', '0')}"
#: On two cores, as PostgreSQL's commits wait for its disk: so many at once in each process.
_options = {"max_workers": 8} if os.environ.get("PEERS_BEST") and "postgres" in effects.DATABASE_URL else {}


@broker.subscriber(stream=StreamSub("peers", group="billing", consumer=_consumer, last_id="0"), **_options)
async def book(number: int) -> None:
    """One task."""
    await effects.do_on_loop(number)


async def enqueue(total: int) -> None:
    """Add the tasks."""
    async with broker:
        for number in range(total):
            await broker.publish(number, stream="peers")


if __name__ == "__main__":
    asyncio.run(app.run() if sys.argv[1] == "work" else enqueue(int(sys.argv[1])))
