"""What each piece of handling one message takes by itself, in microseconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, delete

from benchmarks.bench import Bench
from benchmarks.databases import INSERT_ORDER, ORDERS
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Comparison, Figure, Measurement
from benchmarks.workload import orders
from conquiet import DbSession
from conquiet.payload import decode_payload, encode_payload
from conquiet.queue.metrics import QueueMetrics
from conquiet.tracing import active_traces

_CALLS = 2_000
_PAYLOAD = orders(1)[0]
_DATA = encode_payload(_PAYLOAD)
_ROW = {"entry_id": "1700000000000-0", "number": 1}


@dataclass(frozen=True, slots=True)
class Connections:
    """One for each side, kept over all transactions."""

    ours: Connection
    raw: Connection
    messages: int


@contextmanager
def connections(bench: Bench, messages: int) -> Iterator[Connections]:
    """Opened, on SQLite; the rows are gone at the end."""
    database = bench.database("sqlite")
    with database.ours.connect() as ours, database.raw.connect() as raw:
        yield Connections(ours, raw, messages)
        with raw.begin():
            rows = raw.execute(delete(ORDERS)).rowcount
    if rows != messages:
        raise BenchmarkError(f"{rows} rows instead of {messages}")


def insert_in_sessions(work: Connections) -> None:
    for _ in range(work.messages):
        with DbSession(work.ours) as session:
            session.execute(INSERT_ORDER, _ROW)


def insert_in_transactions(work: Connections) -> None:
    for _ in range(work.messages):
        with work.raw.begin():
            work.raw.execute(INSERT_ORDER, _ROW)


def metrics_us(_bench: Bench) -> float:
    metrics = QueueMetrics("bench", CollectorRegistry())

    def emit() -> None:
        metrics.count_read(1, 0.001)
        metrics.count_acks(1)

    return _per_call_us(emit)


def _of(call: Callable[[], object]) -> Callable[[Bench], float]:
    return lambda _bench: _per_call_us(call)


def _per_call_us(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - started) / _CALLS * 1_000_000


_piece = partial(Figure, unit="µs", rounds=5)

MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="DbSession / connection.begin(), each with one insert",
        prepare=connections,
        raw=insert_in_transactions,
        ours=insert_in_sessions,
        messages=300,
        # At most 1.2 times its time.
        bar=round(1 / 1.2, 3),
        rounds=75,
    ),
    _piece(name="encode_payload", take=_of(partial(encode_payload, _PAYLOAD))),
    _piece(name="json.dumps, for reference", take=_of(partial(json.dumps, _PAYLOAD))),
    _piece(name="decode_payload", take=_of(partial(decode_payload, _DATA))),
    _piece(name="json.loads, for reference", take=_of(partial(json.loads, _DATA))),
    _piece(name="metrics of one read and one ack", take=metrics_us),
    _piece(name="the look whether tracing is on, off", take=_of(active_traces)),
]
