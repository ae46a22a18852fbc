"""A worker in a process of its own that reports how much memory it needed.

`URL stream|topic NAME COUNT`, and for a stream maybe how many MB it is allowed to need.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from sqlalchemy import create_engine

from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain
from conquiet.mq import PartitionConsumer, Topics
from conquiet.queue import open_client


def memory_mb(name: str) -> int:
    """Not `getrusage`: that begins with the peak of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))


def allow_mb(limit_mb: int) -> None:
    """Above that, allocations fail; of threads and mapped files, only what is there now counts."""
    more_mb = limit_mb - memory_mb("VmRSS")
    limit = (memory_mb("VmSize") + more_mb) << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(url: str, kind: str, name: str, count: str, *limit_mb: str) -> None:
    handled = 0

    def handle(_msg: object, *_session: object) -> None:
        nonlocal handled
        handled += 1
        if kind == "topic" and handled == int(count):
            consumer.stop()

    engine = create_engine("sqlite://")
    with open_client(url) as client:
        if limit_mb:
            allow_mb(int(limit_mb[0]))
        try:
            if kind == "stream":
                queue = RedisStreamsQueue(client, QueueConfig(name, "billing", "worker-1"))
                drain(queue, handle, engine, DrainLimits(max_messages=int(count), idle_ms=60_000))
            else:
                consumer = PartitionConsumer(Topics(client).open(name), "billing", handle, engine)
                consumer.run()
        finally:
            print(json.dumps({"handled": handled, "peak_mb": memory_mb("VmHWM")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
