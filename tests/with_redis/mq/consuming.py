"""Consumers in threads and in processes of their own, and what the server says of their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import redis
from prometheus_client import REGISTRY

from conquiet.mq import ConsumerConfig, PartitionConsumer, RetryPolicy, Topic, Topics
from tests.eventually import HANG_S, eventually
from tests.services import Client

GROUP = "billing"

#: Retries come back at once, but not in the same millisecond.
SOON = RetryPolicy(base_delay_ms=20, max_delay_ms=40, max_attempts=3)


class QuickConfig(ConsumerConfig):
    """Looks at the group several times a second, however long its leases are."""

    @property
    def tick_s(self) -> float:
        return min(0.3, self.lease_ttl_ms / 1000 / 3)


def quick(*, batch_size: Any = 100, ordering: Any = "default", **changes: Any) -> ConsumerConfig:
    """A consumer that is quick, with a lease that outlives any stall of the machine unless one is given."""
    settings: dict[str, Any] = {"lease_ttl_ms": 60_000, "retry": SOON, "block_ms": 50}
    return QuickConfig(**(settings | {"batch_size": batch_size, "ordering": ordering} | changes))


class RunningConsumer:
    """A consumer that runs in a thread until `stop()`."""

    def __init__(self, consumer: PartitionConsumer) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def thread_name(self) -> str:
        return self._thread.name

    @property
    def name(self) -> str:
        return self.consumer.config.consumer_name

    def stop(self) -> None:
        self.consumer.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(timeout=HANG_S)
        assert not self.is_running, "the consumer did not end"

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:
            self.error = error


class Consumers:
    """Starts consumers, and ends whatever still runs when the test is over."""

    def __init__(self) -> None:
        self._running: list[RunningConsumer] = []
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, topic: Topic, handler: Any, *, group: str = GROUP, **options: Any) -> RunningConsumer:
        options.setdefault("config", quick())
        running = RunningConsumer(PartitionConsumer(topic, group, handler, **options))
        self._running.append(running)
        return running

    def process(self, url: str, topic: Topic, kind: str, **settings: Any) -> subprocess.Popen[str]:
        """A consumer in a process of its own; `kind` is a handler of `worker_process.py`."""
        command = [sys.executable, "-m", "tests.with_redis.mq.worker_process", url, topic.name, kind]
        process = subprocess.Popen([*command, json.dumps(settings)], text=True, env=os.environ.copy())
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=HANG_S)
        for running in self._running:
            running.consumer.stop()
        for running in self._running:
            running.join()


def expire(topic: Topic) -> None:
    """As when the time of all leases and members is over: the dead keep nothing from the living."""
    for partition in topic.partitions:
        topic.client.delete(topic.keys.lease(GROUP, partition))
    topic.client.delete(topic.keys.members(GROUP))


class Seen(list[Any]):
    """A handler that remembers its messages, in order."""

    def __call__(self, msg: Any, *_session: Any) -> None:
        self.append(msg)

    @property
    def ids(self) -> list[str]:
        return [msg.id for msg in self]

    def numbers(self, key: str | None = None) -> list[Any]:
        return [msg.payload["n"] for msg in self if key is None or msg.key == key]


def pending(topic: Topic, group: str = GROUP) -> dict[str, tuple[str, int]]:
    """Pending entries of all partitions: who has each, and how often it was delivered."""
    rows: list[Any] = []
    for partition in topic.partitions:
        with suppress(redis.ResponseError):  # before its first consumer there is no group
            rows += topic.client.xpending_range(topic.keys.stream(partition), group, "-", "+", 10_000)
    return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}


def is_finished(topic: Topic, group: str = GROUP) -> bool:
    """Whether the group was given everything and has settled it."""
    topic = Topics(topic.client).open(topic.name)
    client: Client = topic.client
    for partition in topic.partitions:
        stream = topic.keys.stream(partition)
        if not client.xlen(stream):
            continue
        infos = {info["name"]: info for info in client.xinfo_groups(stream)}
        info = infos.get(group.encode())
        last = client.xrevrange(stream, count=1)[0][0]
        if info is None or info["pending"] or info["last-delivered-id"] != last:
            return False
    return True


def wait_until_finished(topic: Topic, group: str = GROUP) -> None:
    eventually(lambda: is_finished(topic, group))


def dead_letters(topic: Topic) -> list[dict[str, Any]]:
    """Every dead letter of the topic, as it is written."""
    client: Client = topic.client
    found = []
    for stream in sorted({topic.keys.dead_letters(partition) for partition in topic.partitions}):
        found += [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]
    return found


def owners(topic: Topic, group: str = GROUP) -> list[str | None]:
    """Who holds the lease of each partition."""
    client: Client = topic.client
    replies = [client.hget(topic.keys.lease(group, partition), "owner") for partition in topic.partitions]
    return [None if reply is None else reply.decode() for reply in replies]


def metric(name: str, **labels: str) -> float:
    """The value of one sample; the other metrics are not collected, which takes long after many tests."""
    families = REGISTRY.restricted_registry([name]).collect()
    samples = [sample for family in families for sample in family.samples]
    return next((one.value for one in samples if (one.name, one.labels) == (name, labels)), 0.0)
