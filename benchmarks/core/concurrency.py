"""Several messages at once, and batches, next to the raw loop, on each database."""

from __future__ import annotations

from functools import partial

from benchmarks import raw_loops
from benchmarks.measurement import Comparison, Measurement
from benchmarks.workload import Workload, insert_order, insert_orders, orders_to_insert
from conquiet import DrainLimits, Inbox, drain

_CONCURRENCY = 4
_BATCH_SIZE = 500
#: What a drain handles unless its limits say otherwise, twice: its threads and their connections begin once.
_MESSAGES = 2_000

#: By database and whether there is an inbox: what several at once, and batches, must reach.
_BARS = {
    ("postgres", False): (2.2, None),
    ("postgres", True): (1.6, 10.0),
}


def drain_several(work: Workload, *, has_inbox: bool) -> None:
    limits = DrainLimits(max_messages=work.messages, concurrency=_CONCURRENCY, order_by=False)
    drain(work.queue, insert_order, work.engine, limits, inbox=Inbox() if has_inbox else None)


def drain_batches(work: Workload, *, has_inbox: bool) -> None:
    limits = DrainLimits(max_messages=work.messages, batch_size=_BATCH_SIZE)
    drain(work.queue, insert_orders, work.engine, limits, inbox=Inbox() if has_inbox else None)


def drain_one_by_one(work: Workload, *, has_inbox: bool) -> None:
    limits = DrainLimits(max_messages=work.messages)
    drain(work.queue, insert_order, work.engine, limits, inbox=Inbox() if has_inbox else None)


def _on(database: str, *, has_inbox: bool) -> list[Measurement]:
    with_inbox = " with inbox" if has_inbox else ""
    several, batches = _BARS.get((database, has_inbox), (None, None))
    against_raw = partial(
        Comparison, prepare=partial(orders_to_insert, database=database), raw=raw_loops.one_by_one
    )
    return [
        against_raw(
            name=f"{database}: drain{with_inbox} / raw loop",
            ours=partial(drain_one_by_one, has_inbox=has_inbox),
            messages=200,
        ),
        against_raw(
            name=f"{database}: drain, {_CONCURRENCY} at once{with_inbox} / raw loop",
            ours=partial(drain_several, has_inbox=has_inbox),
            messages=_MESSAGES,
            bar=several,
            rounds=7,
        ),
        against_raw(
            name=f"{database}: drain in batches of {_BATCH_SIZE}{with_inbox} / raw loop",
            ours=partial(drain_batches, has_inbox=has_inbox),
            messages=_MESSAGES,
            bar=batches,
            rounds=7,
        ),
    ]


MEASUREMENTS: list[Measurement] = [
    measurement
    for database in ("sqlite", "postgres", "mariadb")
    for has_inbox in (False, True)
    for measurement in _on(database, has_inbox=has_inbox)
]
