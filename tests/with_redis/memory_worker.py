"""A worker in a process of its own that reports how much memory it needed.

`URL stream|failing|topic NAME COUNT`: each message of a failing one fails.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from sqlalchemy import create_engine

from conquiet import DrainError, DrainLimits, QueueConfig, RedisStreamsQueue, drain
from conquiet.mq import PartitionConsumer, Topics
from conquiet.queue import open_client


def memory_mb(name: str) -> int:
    """Not `getrusage`: that begins with the peak of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))


def main(url: str, kind: str, name: str, count: str) -> None:
    handled = 0

    def handle(_msg: object, *_session: object) -> None:
        nonlocal handled
        handled += 1
        if kind == "failing":
            raise ValueError
        if kind == "topic" and handled == int(count):
            consumer.stop()

    engine = create_engine("sqlite://")
    with open_client(url) as client:
        try:
            if kind == "topic":
                consumer = PartitionConsumer(Topics(client).open(name), "billing", handle, engine)
                consumer.run()
            else:
                queue = RedisStreamsQueue(client, QueueConfig(name, "billing", "worker-1"))
                limits = DrainLimits(max_messages=int(count), idle_ms=60_000, max_failures=None)
                with suppress(DrainError):
                    drain(queue, handle, engine, limits)
        finally:
            print(json.dumps({"handled": handled, "peak_mb": memory_mb("VmHWM")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
