"""Whether memory is flat: processes of their own that drain a million messages each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Engine

from benchmarks.bench import Bench
from benchmarks.core.memory import status_mb
from benchmarks.errors import BenchmarkError, UnavailableError
from benchmarks.measurement import Figure, Measurement
from benchmarks.workload import insert_order, insert_orders, orders
from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain, open_client
from conquiet.mq import Producer, Topics, drain_partition

#: Drained one after the other; the first ones fill caches and are what the last ones are compared with.
_STEPS, _STEP = 10, 100_000
_SIZE = 10_000
_TIMEOUT_S = 1_800

#: Adds so many of the payloads; drains so many messages.
Add = Callable[[list[dict[str, Any]]], object]
Drain = Callable[[], object]


def growth_mb(_bench: Bench, kind: str) -> float:
    """By how much the resident memory after 1,000,000 messages is above that after 100,000."""
    if not os.path.exists("/proc/self/status"):
        raise UnavailableError("the memory of a process is read from /proc, which is not here")
    command = [sys.executable, "-m", "benchmarks.memory", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed: {done.stderr}")
    return float(done.stdout)


def main(kind: str) -> None:
    """Drain all, and print the growth."""
    with Bench() as bench:
        add, drain_all, stream = _WORK[kind](bench.server.url, bench.database("sqlite").ours)
        resident = [_after_step(bench, add, drain_all, stream) for _ in range(_STEPS)]
    print(resident[-1] - resident[0])


def _after_step(bench: Bench, add: Add, drain_all: Drain, stream: str) -> float:
    for _ in range(0, _STEP, _SIZE):
        add(orders(_SIZE))
    drain_all()
    # Finished: the server of the bench keeps them for nobody.
    bench.client.xtrim(stream, maxlen=0, approximate=False)
    gc.collect()
    return status_mb("VmRSS")


def _plain(handler: Any, url: str, engine: Engine, **options: Any) -> tuple[Add, Drain, str]:
    queue = RedisStreamsQueue.from_url(url, QueueConfig("bench", "bench", "bench-1"))
    limits = DrainLimits(max_messages=_STEP, **options)

    def drain_all() -> None:
        _check(drain(queue, handler, engine, limits).handled)

    return queue.enqueue_many, drain_all, "bench"


def _topic(url: str, engine: Engine) -> tuple[Add, Drain, str]:
    client = open_client(url)
    topic, producer = Topics(client).create("bench"), Producer(client)
    limits = DrainLimits(max_messages=_STEP)

    def drain_all() -> None:
        _check(drain_partition(topic, 0, "bench", insert_order, engine, limits).handled)

    return partial(producer.send_many, "bench"), drain_all, topic.keys.stream(0)


def _check(handled: int) -> None:
    if handled != _STEP:
        raise BenchmarkError(f"{handled} messages of {_STEP}")


_WORK: dict[str, Callable[[str, Engine], tuple[Add, Drain, str]]] = {
    "drain": partial(_plain, insert_order),
    "drain, 4 at once": partial(_plain, insert_order, concurrency=4, order_by=False),
    "drain in batches of 500": partial(_plain, insert_orders, batch_size=500),
    "MQ": _topic,
}

MEASUREMENTS: list[Measurement] = [
    Figure(
        name=f"{kind}: memory after 1,000,000 messages, less that after 100,000",
        unit="MB",
        take=partial(growth_mb, kind=kind),
        # What an allocator keeps of its own accord.
        bar=8,
    )
    for kind in _WORK
]

if __name__ == "__main__":
    main(sys.argv[1])
