"""A worker in a process of its own that has little memory, and reports how much it needed.

`URL stream|failing|topic|strict|requeue NAME COUNT [LIMIT_MB]`: each message of a failing one fails, of a
strict or requeueing one at its first attempt. `LIMIT_MB` is what the system allows it.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

from sqlalchemy import create_engine

from conquiet import DrainError, DrainLimits, QueueConfig, RedisStreamsQueue, drain
from conquiet.mq import ConsumerConfig, PartitionConsumer, RetryPolicy, Topics
from conquiet.queue import open_client

Kind = Literal["stream", "failing", "topic", "strict", "requeue"]

#: Long enough for all that comes meanwhile to be read.
_RETRY_MS = 2_000


def memory_mb(name: str) -> int:
    """Not `getrusage`: that begins with the peak of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))


def config_of(kind: str) -> ConsumerConfig:
    retry = RetryPolicy(base_delay_ms=_RETRY_MS, max_delay_ms=_RETRY_MS)
    match kind:
        case "strict":
            return ConsumerConfig(retry=retry, ordering="strict")
        case "requeue":
            return ConsumerConfig(retry=retry, retry_mode="requeue")
    return ConsumerConfig()


def main(url: str, kind: str, name: str, count: str, limit_mb: str = "0") -> None:
    handled, lock = 0, threading.Lock()

    def handle(msg: object, *_session: object) -> None:
        nonlocal handled
        if kind == "failing":
            handled += 1
            raise ValueError
        if kind in ("strict", "requeue") and msg.attempt == 1:  # type: ignore[attr-defined]
            raise ValueError
        with lock:
            handled += 1
        if kind in ("topic", "strict", "requeue") and handled == int(count):
            consumer.stop()

    if int(limit_mb):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_mb) << 20,) * 2)
    engine = create_engine("sqlite://")
    with open_client(url) as client:
        try:
            if kind in ("topic", "strict", "requeue"):
                topic = Topics(client).open(name)
                consumer = PartitionConsumer(topic, "billing", handle, None, config=config_of(kind))
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
