"""The work that both sides of a comparison of tasks are given: an app with a queue of its own."""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from benchmarks.bench import Bench
from benchmarks.errors import BenchmarkError
from benchmarks.workload import orders
from conquiet.tasks import Task, TaskApp, Worker, WorkerConfig
from conquiet.tasks.envelope import TaskEnvelope

#: For a part in a process of its own; that its package imports it first is a warning.
PYTHON = (sys.executable, "-W", "ignore::RuntimeWarning", "-m")

STREAM = "bench:tasks"
_FIELDS = TaskEnvelope(name="book", args={}).fields()


@dataclass(slots=True)
class QueueWork:
    """One timed run's own queue; the raw side has a stream of the same entries."""

    app: TaskApp
    #: Counts its calls, and does nothing else.
    book: Task[..., None]
    client: redis.Redis
    payloads: list[dict[str, Any]]
    #: What a raw producer adds for each of them, and a raw consumer reads.
    envelope: bytes = b""
    done: int = 0
    is_done: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> int:
        return len(self.payloads)

    @property
    def arguments(self) -> list[dict[str, Any]]:
        return [{"order": payload} for payload in self.payloads]

    def as_envelope(self, payload: dict[str, Any]) -> str:
        """As many bytes as a task with this payload has, as a raw producer makes them."""
        return json.dumps({**_FIELDS, "args": {"order": payload}}, separators=(",", ":"))

    def queued(self) -> int:
        """Tasks that have not ended."""
        stats = self.app.control.queue("default")
        return stats.queued + stats.in_flight + stats.waiting


@contextmanager
def empty_queue(bench: Bench, messages: int) -> Iterator[QueueWork]:
    """A queue to enqueue to."""
    with TaskApp(bench.server.url, namespace=f"bench:{secrets.token_hex(4)}") as app:

        @app.task(name="book")
        def book(order: dict[str, Any]) -> None:
            work.done += 1
            if work.done == messages:
                work.is_done.set()

        work = QueueWork(app, book, bench.client, orders(messages))
        yield work
        keys = list(bench.client.scan_iter(f"{app.namespace}:*", count=10_000))
        bench.client.delete(STREAM, *keys)


@contextmanager
def filled_queue(bench: Bench, messages: int) -> Iterator[QueueWork]:
    """A queue to work through, and a stream of the same envelopes; at the end the queue must be empty."""
    with empty_queue(bench, messages) as work:
        work.book.enqueue_many(work.arguments)
        [[_, fields]] = bench.client.xrange(f"{work.app.namespace}:{{default}}:5", count=1)
        work.envelope = fields[b"data"]
        pipeline = bench.client.pipeline(transaction=False)
        for _ in range(messages):
            pipeline.xadd(STREAM, {"data": work.envelope})
        pipeline.execute()
        bench.client.xgroup_create(STREAM, "workers", "0-0")
        yield work
        left = work.queued()
        if work.done and left:
            raise BenchmarkError(f"{left} of {messages} tasks are left")


def work_through(work: QueueWork, config: WorkerConfig | None = None) -> None:
    """Run a worker until every task has ended."""
    worker = Worker(work.app, config or WorkerConfig(pool="thread", concurrency=1))
    worker.start()
    work.is_done.wait(timeout=300)
    worker.stop()
    worker.join()
