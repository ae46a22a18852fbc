"""The loops that a competent engineer writes with redis-py and SQLAlchemy Core alone."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from benchmarks.bench import BLOCK_MS
from benchmarks.databases import INSERT_ORDER
from benchmarks.workload import CONSUMER, GROUP, Workload


def one_by_one(work: Workload) -> None:
    """Read one, insert and commit, ack: two round trips for each message."""
    client, stream = work.client, work.stream
    with work.raw_engine.connect() as connection:
        for _ in range(work.messages):
            [[_, [entry]]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=1, block=BLOCK_MS)
            _insert(connection, entry)
            client.xack(stream, GROUP, entry[0])


def sharing_round_trips(work: Workload) -> None:
    """As `one_by_one`, with the ack and the next read in one round trip."""
    client, stream = work.client, work.stream
    with work.raw_engine.connect() as connection:
        reply = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=1, block=BLOCK_MS)
        for _ in range(work.messages - 1):
            [[_, [entry]]] = reply
            _insert(connection, entry)
            pipeline = client.pipeline(transaction=False)
            pipeline.xack(stream, GROUP, entry[0])
            pipeline.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=1, block=BLOCK_MS)
            _, reply = pipeline.execute()
        [[_, [entry]]] = reply
        _insert(connection, entry)
        client.xack(stream, GROUP, entry[0])


def batched_without_database(work: Workload, batch_size: int = 100) -> None:
    """Read 100, decode each, one ack for all of them."""
    client, stream = work.client, work.stream
    for _ in range(0, work.messages, batch_size):
        [[_, entries]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=batch_size, block=BLOCK_MS)
        for _, fields in entries:
            json.loads(fields[b"data"])
        client.xack(stream, GROUP, *(entry_id for entry_id, _ in entries))


def _insert(connection: Connection, entry: tuple[bytes, dict[bytes, bytes]]) -> None:
    entry_id, fields = entry
    order: dict[str, Any] = json.loads(fields[b"data"])
    with connection.begin():
        connection.execute(INSERT_ORDER, {"entry_id": entry_id.decode(), "number": order["number"]})
