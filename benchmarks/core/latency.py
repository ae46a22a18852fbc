"""How long an idle consumer needs from the enqueue of a message to its handler, next to a blocking read."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from statistics import quantiles
from typing import Literal

from benchmarks.bench import Bench
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Figure, Measurement
from benchmarks.workload import CONSUMER, GROUP
from conquiet import DrainLimits, QueueConfig, QueueConsumer, RedisStreamsQueue, drain
from conquiet.mq import ConsumerConfig, PartitionConsumer, Producer, Topics

_MESSAGES = 400
#: Between two messages: the consumer waits again by then.
_PAUSE_S = 0.004
_GIVE_UP_S = 30.0

#: Called with each message, in the consumer's thread.
Arrived = Callable[[], None]
#: Sends one message.
Send = Callable[[], object]
Kind = Literal["raw", "run", "drain", "MQ"]


@lru_cache(maxsize=8)
def percentiles(bench: Bench, kind: Kind) -> tuple[float, float]:
    """The median and the 99th percentile, in ms."""
    arrived = threading.Event()
    latencies = []
    with _CONSUMERS[kind](bench, arrived.set) as send:
        for number in range(_MESSAGES + 20):
            arrived.clear()
            sent = time.perf_counter()
            send()
            if not arrived.wait(_GIVE_UP_S):
                raise BenchmarkError(f"{kind}: a message did not arrive")
            # The first ones find consumers that connect, and load what they need.
            if number >= 20:
                latencies.append((time.perf_counter() - sent) * 1000)
            time.sleep(_PAUSE_S)
    cuts = quantiles(latencies, n=100)
    return cuts[49], cuts[98]


@contextmanager
def _raw(bench: Bench, arrived: Arrived) -> Iterator[Send]:
    client, stream = bench.client, f"bench:{secrets.token_hex(4)}"
    client.xgroup_create(stream, GROUP, mkstream=True)
    stopping = threading.Event()

    def consume() -> None:
        while not stopping.is_set():
            reply = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=1, block=200)
            for _, [(entry_id, _fields)] in reply:
                arrived()
                client.xack(stream, GROUP, entry_id)

    with _thread(consume, stopping.set):
        yield lambda: client.xadd(stream, {"data": '{"n":1}'})


@contextmanager
def _stream(bench: Bench, kind: Kind, arrived: Arrived) -> Iterator[Send]:
    config = QueueConfig(f"bench:{secrets.token_hex(4)}", GROUP, CONSUMER, block_ms=200)
    engine = bench.database("sqlite").ours
    stopping = threading.Event()
    with (
        RedisStreamsQueue.from_url(bench.server.url, config) as queue,
        RedisStreamsQueue.from_url(bench.server.url, config) as sender,
    ):
        consumer = QueueConsumer(queue)

        def consume() -> None:
            if kind == "run":
                consumer.run(handler=lambda _msg, _session: arrived(), engine=engine)
                return
            limits = DrainLimits(max_messages=None, idle_ms=None, should_stop=stopping.is_set)
            drain(queue, lambda _msg, _session: arrived(), engine, limits)

        def stop() -> None:
            consumer.stop()
            stopping.set()

        with _thread(consume, stop):
            yield lambda: sender.enqueue({"n": 1})


@contextmanager
def _run(bench: Bench, arrived: Arrived) -> Iterator[Send]:
    with _stream(bench, "run", arrived) as send:
        yield send


@contextmanager
def _drain(bench: Bench, arrived: Arrived) -> Iterator[Send]:
    with _stream(bench, "drain", arrived) as send:
        yield send


@contextmanager
def _topic(bench: Bench, arrived: Arrived) -> Iterator[Send]:
    topics = Topics(bench.client)
    topic = topics.create(f"bench-{secrets.token_hex(4)}", 1)
    producer = Producer(bench.client)
    consumer = PartitionConsumer(
        topic, GROUP, lambda _msg: arrived(), config=ConsumerConfig(consumer_name=CONSUMER)
    )
    with _thread(consumer.run, consumer.stop):
        yield lambda: producer.send(topic, {"n": 1})
    topics.delete(topic.name)


@contextmanager
def _thread(work: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


_CONSUMERS = {"raw": _raw, "run": _run, "drain": _drain, "MQ": _topic}


def _times_raw(kind: Kind, percentile: Literal[0, 1]) -> Callable[[Bench], float]:
    return lambda bench: percentiles(bench, kind)[percentile] / percentiles(bench, "raw")[percentile]


def _stop_ms(bench: Bench) -> float:
    """From the stop of an idle consumer of a topic to its end."""
    topics = Topics(bench.client)
    topic = topics.create(f"bench-{secrets.token_hex(4)}", 8)
    consumer = PartitionConsumer(
        topic, GROUP, lambda _msg: None, config=ConsumerConfig(consumer_name=CONSUMER)
    )
    with consumer:
        time.sleep(0.5)
        stopped = time.perf_counter()
    took_ms = (time.perf_counter() - stopped) * 1000
    topics.delete(topic.name)
    return took_ms


MEASUREMENTS: list[Measurement] = [
    *(
        Figure(
            name=f"idle latency, {kind} / raw, {name}", unit="ratio", take=_times_raw(kind, place), bar=bar
        )
        for kind in ("run", "drain", "MQ")
        for place, name, bar in ((0, "p50", 2.0), (1, "p99", 3.0))
    ),
    Figure(name="stop of an idle consumer of 8 partitions", unit="ms", take=_stop_ms, bar=100, rounds=5),
]
