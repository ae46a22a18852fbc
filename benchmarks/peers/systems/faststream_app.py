"""FastStream on Redis streams, in a group, acked after the handler."""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from benchmarks.peers.systems import effects

broker = RedisBroker(effects.REDIS_URL)
app = FastStream(broker)


@broker.subscriber(stream=StreamSub("peers", group="billing", consumer="worker", last_id="0"))
async def book(number: int) -> None:
    """One task."""
    effects.do(number)


async def enqueue(total: int) -> None:
    """Add the tasks."""
    async with broker:
        for number in range(total):
            await broker.publish(number, stream="peers")


if __name__ == "__main__":
    asyncio.run(app.run() if sys.argv[1] == "work" else enqueue(int(sys.argv[1])))
