"""The work that both sides of a comparison are given: a stream, its messages, a database."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import redis
from sqlalchemy import Engine, delete

from benchmarks.bench import BLOCK_MS, Bench
from benchmarks.databases import INSERT_ORDER, ORDERS
from benchmarks.errors import BenchmarkError
from conquiet import DbSession, QueueConfig, QueueMessage, RedisStreamsQueue, batch_handler

GROUP = "bench"
CONSUMER = "bench-1"


@dataclass(frozen=True, slots=True)
class Workload:
    """One timed run's own stream: queue and engine are our side's, client and raw_engine the raw one's."""

    queue: RedisStreamsQueue
    client: redis.Redis
    engine: Engine
    raw_engine: Engine
    payloads: list[dict[str, Any]]

    @property
    def stream(self) -> str:
        return self.queue.config.stream_key

    @property
    def messages(self) -> int:
        return len(self.payloads)


@lru_cache(maxsize=8)
def orders(count: int) -> list[dict[str, Any]]:
    """Payloads of about 200 bytes of JSON each."""
    return [
        {
            "number": number,
            "customer": f"customer-{number % 977:06}",
            "currency": "EUR",
            "amount": number % 500 + 0.25,
            "items": [{"sku": "SKU-000417", "quantity": 2}, {"sku": "SKU-001093", "quantity": 1}],
            "isGift": False,
            "note": "leave it next door",
        }
        for number in range(count)
    ]


def insert_order(msg: QueueMessage, session: DbSession) -> None:
    """The handler of every side: one row for one message."""
    session.execute(INSERT_ORDER, {"entry_id": msg.id, "number": msg.payload["number"]})


@batch_handler
def insert_orders(messages: list[QueueMessage], session: DbSession) -> None:
    """The same for a batch, in one statement."""
    rows = [{"entry_id": msg.id, "number": msg.payload["number"]} for msg in messages]
    session.execute(INSERT_ORDER, rows)


@contextmanager
def empty_stream(bench: Bench, messages: int) -> Iterator[Workload]:
    """A stream to enqueue to; at the end it must have all the messages."""
    with _workload(bench, messages, "sqlite") as workload:
        yield workload
        _expect(workload, "messages in the stream", workload.client.xlen(workload.stream), messages)


@contextmanager
def orders_to_insert(bench: Bench, messages: int, database: str = "sqlite") -> Iterator[Workload]:
    """A filled stream; at the end every message must be acked and have its row."""
    with _filled_stream(bench, messages, database) as workload:
        yield workload
        with workload.raw_engine.begin() as connection:
            rows = connection.execute(delete(ORDERS)).rowcount
        _expect(workload, "rows in the table", rows, messages)


@contextmanager
def orders_to_ignore(bench: Bench, messages: int) -> Iterator[Workload]:
    """A filled stream for handlers that do nothing; at the end every message must be acked."""
    with _filled_stream(bench, messages, "sqlite") as workload:
        yield workload


@contextmanager
def _filled_stream(bench: Bench, messages: int, database: str) -> Iterator[Workload]:
    with _workload(bench, messages, database) as workload:
        workload.queue.enqueue_many(workload.payloads)
        yield workload
        left = workload.queue.backlog_stats()
        _expect(workload, "messages pending", left.pending, 0)
        _expect(workload, "messages not delivered", left.lag, 0)


@contextmanager
def _workload(bench: Bench, messages: int, database: str) -> Iterator[Workload]:
    engines = bench.database(database)
    config = QueueConfig(f"bench:{secrets.token_hex(4)}", GROUP, CONSUMER, block_ms=BLOCK_MS)
    with RedisStreamsQueue.from_url(bench.server.url, config) as queue:
        yield Workload(queue, bench.client, engines.ours, engines.raw, orders(messages))
        bench.client.delete(config.stream_key)


def _expect(workload: Workload, what: str, found: int | None, expected: int) -> None:
    if found != expected:
        raise BenchmarkError(f"{what}: {found} instead of {expected}, of {workload.messages} messages")
