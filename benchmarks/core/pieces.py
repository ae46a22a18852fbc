"""What each piece of handling one message takes by itself, in microseconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry

from benchmarks.bench import Bench
from benchmarks.databases import INSERT_ORDER
from benchmarks.measurement import Figure, Measurement
from benchmarks.workload import orders
from conquiet import DbSession
from conquiet.payload import decode_payload, encode_payload
from conquiet.queue.metrics import QueueMetrics
from conquiet.tracing import active_traces

_CALLS = 2_000
_PAYLOAD = orders(1)[0]
_DATA = encode_payload(_PAYLOAD)
_ROW = {"entry_id": "1700000000000-0", "number": 1}


def db_session_us(bench: Bench) -> float:
    with bench.database("sqlite").ours.connect() as connection:

        def insert_in_session() -> None:
            with DbSession(connection) as session:
                session.execute(INSERT_ORDER, _ROW)

        return _per_call_us(insert_in_session)


def core_transaction_us(bench: Bench) -> float:
    with bench.database("sqlite").raw.connect() as connection:

        def insert_in_transaction() -> None:
            with connection.begin():
                connection.execute(INSERT_ORDER, _ROW)

        return _per_call_us(insert_in_transaction)


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
    _piece(name="encode_payload", take=_of(partial(encode_payload, _PAYLOAD))),
    _piece(name="json.dumps, for reference", take=_of(partial(json.dumps, _PAYLOAD))),
    _piece(name="decode_payload", take=_of(partial(decode_payload, _DATA))),
    _piece(name="json.loads, for reference", take=_of(partial(json.loads, _DATA))),
    _piece(name="DbSession with one insert, connection kept", take=db_session_us),
    _piece(name="connection.begin() with one insert, for reference", take=core_transaction_us),
    _piece(name="metrics of one read and one ack", take=metrics_us),
    _piece(name="the look whether tracing is on, off", take=_of(active_traces)),
]
