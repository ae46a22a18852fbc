"""`run` and `drain` next to the raw loops."""

from __future__ import annotations

from functools import partial
from threading import Timer

from benchmarks import raw_loops
from benchmarks.measurement import Comparison, Measurement
from benchmarks.workload import Workload, insert_order, orders_to_ignore, orders_to_insert
from conquiet import DbSession, DrainLimits, Inbox, QueueConsumer, QueueMessage, drain

#: Ends a run that lost messages; the check after it then says how many.
_GIVE_UP_S = 60


def run_until_done(work: Workload, inbox: Inbox | None = None) -> None:
    """`QueueConsumer.run`, stopped by the handler of the last message."""
    consumer = QueueConsumer(work.queue)
    left = work.messages

    def handle(msg: QueueMessage, session: DbSession) -> None:
        nonlocal left
        insert_order(msg, session)
        left -= 1
        if not left:
            consumer.stop()

    give_up = Timer(_GIVE_UP_S, consumer.stop)
    give_up.start()
    try:
        consumer.run(handler=handle, engine=work.engine, inbox=inbox)
    finally:
        give_up.cancel()


def drain_all(work: Workload, inbox: Inbox | None = None) -> None:
    drain(work.queue, insert_order, work.engine, DrainLimits(max_messages=work.messages), inbox=inbox)


def drain_doing_nothing(work: Workload) -> None:
    drain(work.queue, lambda _msg, _session: None, work.engine, DrainLimits(max_messages=work.messages))


def run_with_inbox(work: Workload) -> None:
    run_until_done(work, Inbox())


def drain_with_inbox(work: Workload) -> None:
    drain_all(work, Inbox())


_on_sqlite = partial(Comparison, prepare=orders_to_insert, raw=raw_loops.one_by_one, messages=200)


def _runs_on(name: str, database: str) -> list[Measurement]:
    """`run` there, without and with an inbox, next to the loop that has none."""
    comparison = partial(
        Comparison,
        prepare=partial(orders_to_insert, database=database),
        raw=raw_loops.one_by_one,
        messages=100,
        bar=1.0,
        rounds=31,
    )
    return [
        comparison(name=f"{name}: run / raw loop", ours=run_until_done),
        comparison(name=f"{name}: run with inbox / raw loop", ours=run_with_inbox),
    ]


MEASUREMENTS: list[Measurement] = [
    _on_sqlite(name="run / raw loop", ours=run_until_done, bar=1.0, messages=100, rounds=75),
    _on_sqlite(name="drain / raw loop", ours=drain_all, bar=2.0, messages=500),
    _on_sqlite(name="run with inbox / raw loop", ours=run_with_inbox, bar=1.0, messages=100, rounds=75),
    _on_sqlite(name="drain with inbox / raw loop", ours=drain_with_inbox),
    Comparison(
        name="drain with inbox / drain without",
        prepare=orders_to_insert,
        raw=drain_all,
        ours=drain_with_inbox,
        messages=200,
        # At most 1.35 times its time.
        bar=round(1 / 1.35, 3),
        rounds=31,
    ),
    Comparison(
        name="run / raw loop, ack and next read share a round trip",
        prepare=orders_to_insert,
        raw=raw_loops.sharing_round_trips,
        ours=run_until_done,
        messages=200,
    ),
    Comparison(
        name="no-op drain / raw batches of 100 without a database",
        prepare=orders_to_ignore,
        raw=raw_loops.batched_without_database,
        ours=drain_doing_nothing,
        messages=3_000,
    ),
    *_runs_on("PostgreSQL", "postgres"),
    *_runs_on("MariaDB", "mariadb"),
]
