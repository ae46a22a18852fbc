"""Whether a message costs the same in a topic of many partitions and in a stream of many entries."""

from __future__ import annotations

import gc
import secrets
import threading
import time
from functools import partial

from benchmarks.bench import Bench
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Figure, Measurement
from benchmarks.mq.topics import TopicWork, work_through
from benchmarks.workload import GROUP, orders
from conquiet.mq import Message, PartitionConsumer, Producer, Topics

_MESSAGES = 6_400
_TAIL = 2_000
_FILLING = 10_000


def microseconds_with_partitions(bench: Bench, partitions: int) -> float:
    """Per message of a consumer that owns all partitions and has read from each of them before."""
    topics = Topics(bench.client)
    topic = topics.create(f"bench-{secrets.token_hex(4)}", partitions)
    producer = Producer(bench.client)
    messages = [
        Message(payload=payload, partition=number % partitions)
        for number, payload in enumerate(orders(_MESSAGES))
    ]
    handled: list[object] = []
    is_done = threading.Event()

    def handler(msg: object) -> None:
        handled.append(msg)
        if len(handled) == _MESSAGES:
            is_done.set()

    def seconds_of_all() -> float:
        # Sent while it is paused: the producer would take its share of the time.
        consumer.pause()
        producer.send_many(topic.name, messages)
        handled.clear()
        is_done.clear()
        gc.collect()
        started = time.perf_counter()
        consumer.resume()
        if not is_done.wait(timeout=60):
            raise BenchmarkError(f"{len(handled)} of {_MESSAGES} messages were handled in a minute")
        return time.perf_counter() - started

    consumer = PartitionConsumer(topic, GROUP, handler)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    # The first time as a warm-up: leases are acquired, threads started, connections opened.
    seconds_of_all()
    seconds = seconds_of_all()
    consumer.stop()
    thread.join()
    topics.delete(topic.name)
    return seconds / _MESSAGES * 1e6


def times_the_cost_of_one_partition(bench: Bench, partitions: int) -> float:
    """What a message costs with so many partitions, in terms of what it costs with one."""
    alone = microseconds_with_partitions(bench, 1)
    return microseconds_with_partitions(bench, partitions) / alone


def microseconds_behind_entries(bench: Bench, entries: int) -> float:
    """Per message at the end of a stream that keeps so many finished ones."""
    topics = Topics(bench.client)
    topic = topics.create(f"bench-{secrets.token_hex(4)}", 1)
    stream = topic.keys.stream(0)
    for _ in range(0, entries, _FILLING):
        with bench.client.pipeline(transaction=False) as pipeline:
            for _ in range(min(_FILLING, entries)):
                pipeline.execute_command("XADD", stream, "*", "data", "{}")
            pipeline.execute()
    bench.client.xgroup_create(stream, GROUP, "$", mkstream=True)
    engines = bench.database("sqlite")
    work = TopicWork(topic, bench.client, engines.ours, engines.raw, orders(_TAIL))
    Producer(bench.client).send_many(topic.name, work.payloads)
    started = time.perf_counter()
    work_through(work, lambda _msg: None, _TAIL)
    took = time.perf_counter() - started
    topics.delete(topic.name)
    return took / _TAIL * 1e6


MEASUREMENTS: list[Measurement] = [
    *(
        Figure(
            name=f"no-op, {partitions} partitions",
            unit="µs",
            take=partial(microseconds_with_partitions, partitions=partitions),
            rounds=3,
        )
        for partitions in (1, 8, 64)
    ),
    Figure(
        name="no-op, 64 partitions / 1",
        unit="ratio",
        take=partial(times_the_cost_of_one_partition, partitions=64),
        rounds=5,
    ),
    *(
        Figure(
            name=f"no-op, behind {entries:,} entries",
            unit="µs",
            take=partial(microseconds_behind_entries, entries=entries),
            rounds=1 if entries > 100_000 else 3,
        )
        for entries in (1_000, 100_000, 1_000_000)
    ),
]
